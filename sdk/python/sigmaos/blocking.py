"""The blocking face: plain methods, which threads may share.

A client's methods wait as long as it takes; ``client.within(seconds)`` gives the same client whose
methods raise Timeout after that.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, Concatenate, Literal, ParamSpec, TypeVar, overload

from . import calls, core, faces, transport
from . import messages as p
from .context import resolve
from .errors import Canceled, Lost, SigmaError, Timeout, Unavailable
from .session import Connect, Effect, Event, Link, Op, Pause, Request, Session, Start, Within, reconnect
from .session import begin as begin_session
from .types import Principal

P = ParamSpec("P")
T = TypeVar("T")
X = TypeVar("X")
F = TypeVar("F", bound="_Face")

FLUSH_WAIT = 1.0  # how long a caller that gave up waits for what became of its request


class _Scope:
    """How long something may take."""

    def __init__(self, until: float | None = None, events: tuple[Event, ...] = ()) -> None:
        self.until, self.events = until, events

    def narrowed(self, seconds: float | None, event: Event | None) -> _Scope:
        until = self.until
        if seconds is not None:
            end = time.monotonic() + seconds
            until = end if until is None else min(until, end)
        return _Scope(until, (*self.events, event) if event else self.events)

    def over(self) -> SigmaError | None:
        if any(e.happened for e in self.events):
            return Canceled()
        if self.until is not None and time.monotonic() >= self.until:
            return Timeout()
        return None


class _Wait:
    """Waits until one of some events happens, or a scope is over."""

    def __init__(self, scope: _Scope, event: Event | None) -> None:
        self._woken = threading.Event()
        self._scope, self._event = scope, event
        self._all = (*scope.events, event) if event else scope.events

    def __enter__(self) -> _Wait:
        for e in self._all:
            e.tell(self._woken.set)
        return self

    def __exit__(self, *_: object) -> None:
        for e in self._all:
            e.untell(self._woken.set)

    def wait(self, seconds: float | None) -> SigmaError | None:
        """Wait for the event, or so long; gives why the scope is over, if it is before."""
        until = None if seconds is None else time.monotonic() + seconds
        while True:
            now = time.monotonic()
            if (self._event is not None and self._event.happened) or (until is not None and now >= until):
                return None
            if (over := self._scope.over()) is not None:
                return over
            ends = [t - now for t in (until, self._scope.until) if t is not None]
            self._woken.wait(min(ends) if ends else None)


class _Pipe:
    """A socket that a thread reads, and whoever has something to send writes."""

    def __init__(self, port: Session | calls.Connection, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.port, self.sock = port, sock
        port.transmit, port.hang_up = self.transmit, self.hang_up
        self.thread = threading.Thread(target=self._read, name="sigmaos reader", daemon=True)
        self._writing, self._crowded = threading.Lock(), False

    def hang_up(self) -> None:
        """End the socket; its thread closes it."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def transmit(self) -> None:
        """Send what waits, unless another thread does so."""
        reader = threading.current_thread() is self.thread
        while self._writing.acquire(blocking=False):
            try:
                sent = self._drain(not reader)
            finally:
                self._writing.release()
            if not sent:
                return

    def _drain(self, patient: bool) -> bool:
        sent = False
        while self.port.transmit == self.transmit and (data := self.port.pull()):
            try:
                n = self.sock.send(data)
                if n < len(data):
                    self.port.back(data[n:])
                sent = True
            except (BlockingIOError, InterruptedError):
                self.port.back(data)
                if not patient:
                    self._crowded = True
                    return False
                with contextlib.suppress(OSError, ValueError):
                    poll = select.poll()
                    poll.register(self.sock, select.POLLOUT)
                    poll.poll(1000)
            except (OSError, ValueError):
                return False  # the reader finds out, too
        return sent

    def _read(self) -> None:
        cause: SigmaError | None = None
        try:
            poll = select.poll()
            poll.register(self.sock, select.POLLIN)
            more = True
            served = self.port if isinstance(self.port, calls.Connection) and self.port.server else None
            while more:
                poll.modify(self.sock, select.POLLIN | (select.POLLOUT if self._crowded else 0))
                ready = poll.poll(1000 if served else None)
                if served:
                    served.look()
                if self._crowded:
                    self._crowded = False
                    self.transmit()
                if any(bits & ~select.POLLOUT for _, bits in ready):
                    with contextlib.suppress(BlockingIOError, InterruptedError):
                        while more:
                            more = transport.take(self.port, self.sock)
        except SigmaError as e:
            cause = e
        except (OSError, ValueError) as e:
            cause = Lost(str(e))
        if self.port.transmit == self.transmit:
            self.port.lost(cause)
        self.sock.close()


class _Shell:
    """Carries out effects."""

    def __init__(self, dial: Callable[[], socket.socket] | None = None) -> None:
        self._dial = dial

    def run(self, gen: Op[T], scope: _Scope) -> T:
        """Run a generator to its end."""
        value: Any = None
        error: BaseException | None = None
        while True:
            try:
                effect = gen.send(value) if error is None else gen.throw(error)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            value, error = None, None
            try:
                value = self._perform(effect, scope)
            except BaseException as e:
                error = e

    def _perform(self, effect: Effect, scope: _Scope) -> Any:
        match effect:
            case Request():
                return self._request(effect, scope)
            case Pause():
                with _Wait(scope, effect.event) as w:
                    over = w.wait(effect.seconds)
                if over is not None:
                    raise over
                return effect.event is not None and effect.event.happened
            case Within():
                return self.run(effect.gen, scope.narrowed(effect.seconds, effect.event))
            case Start():
                return self.start(effect.gen)
            case Connect():
                if self._dial is None:
                    raise Unavailable("there is nothing to connect to")
                return self._dial()
            case Link():
                self.link(effect.session, effect.sock)
            case calls.LinkStream():
                self.link_stream(effect.connection, effect.sock)
        return None

    def _request(self, r: Request, scope: _Scope) -> tuple[p.Message, list[int]]:
        with _Wait(scope, r.done) as w:
            try:
                r.session.submit(r)
                over = w.wait(None)
            except BaseException:
                r.session.cancel(r)
                r.abandon()
                raise
        if over is None:
            return r.result()
        r.session.cancel(r)
        with _Wait(_Scope(), r.done) as w:
            w.wait(FLUSH_WAIT)
        if not r.done.happened:
            r.abandon()
            raise over
        if isinstance(r.error, Canceled):
            over.hint = r.error.hint
            raise over
        return r.result()

    def start(self, gen: Op[None]) -> Event:
        """Run a generator in a thread."""
        ended = Event()

        def run() -> None:
            try:
                self.run(gen, _Scope())
            except SigmaError:
                pass
            finally:
                ended.set()

        threading.Thread(target=run, name="sigmaos task", daemon=True).start()
        return ended

    def link(self, session: Session, sock: socket.socket) -> None:
        """Have a session use a socket."""
        pipe = _Pipe(session, sock)
        session.resume = lambda: self.start(begin_again(session))
        pipe.thread.start()
        if session.broken is not None:
            pipe.hang_up()

    def link_stream(self, connection: calls.Connection, sock: socket.socket) -> None:
        """Have a connection of calls use a socket."""
        pipe = _Pipe(connection, sock)
        pipe.thread.start()
        pipe.transmit()


def begin_again(session: Session) -> Op[None]:
    """Let a session go on with another server."""
    if session.lasting:
        yield from reconnect(session)
        return
    try:
        yield from begin_session(session)
    except SigmaError as e:
        session.fail(e)


class _Face:
    """What a program sees of a core object."""

    def __init__(self, shell: _Shell, inner: Any) -> None:
        self._shell, self._inner = shell, inner
        self._seconds: float | None = None

    def _run(self, gen: Op[T]) -> T:
        return self._shell.run(gen, _Scope().narrowed(self._seconds, None))

    def within(self: F, seconds: float) -> F:
        """Give the same thing, whose methods raise Timeout after so many seconds."""
        other = copy.copy(self)
        other._seconds = seconds
        return other


class _Context(_Face):
    """A face that is given up at the end of a context."""

    def _leave(self) -> None:
        raise NotImplementedError

    def __enter__(self: F) -> F:
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()


def _do(f: Callable[Concatenate[Any, P], Op[T]]) -> Callable[Concatenate[_Face, P], T]:
    @functools.wraps(f)
    def run(self: _Face, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(f(self._inner, *args, **kwargs))

    return run


def _make(
    f: Callable[Concatenate[Any, P], Op[T]], face: Callable[[_Shell, T], X]
) -> Callable[Concatenate[_Face, P], X]:
    @functools.wraps(f)
    def run(self: _Face, /, *args: P.args, **kwargs: P.kwargs) -> X:
        return face(self._shell, self._run(f(self._inner, *args, **kwargs)))

    return run


class Lease(faces.OfLease, _Context):
    """A lease that is renewed until it is revoked or lost. As a context it is revoked at the end."""

    def wait_lost(self, timeout: float | None = None) -> bool:
        """Wait until it is not kept any more; tells whether it is so."""
        with _Wait(_Scope(), self._inner.lost) as w:
            w.wait(timeout)
        return self.lost

    revoke = _do(core.Lease.revoke)
    _leave = revoke


class Leadership(faces.OfLeadership, _Context):
    """Won by ``campaign``. As a context it is resigned at the end."""

    def wait_lost(self, timeout: float | None = None) -> bool:
        """Wait until the program may lead no more; tells whether it is so."""
        return Lease(self._shell, self._inner.lease).wait_lost(timeout)

    resign = _do(core.Leadership.resign)
    _leave = resign


class Membership(faces.OfMembership, _Context):
    """An endpoint that is published in a directory. As a context it is left at the end."""

    leave = _do(core.Membership.leave)
    _leave = leave


class File(io.RawIOBase):
    """An open file, as ``io`` has them, unbuffered; ``open`` puts a buffer around it."""

    def __init__(self, shell: _Shell, inner: core.OpenFile) -> None:
        super().__init__()
        self._face = _Face(shell, inner)
        self._inner = inner
        self.name = inner.path

    def readable(self) -> bool:
        """Whether it was opened for reading."""
        return self._inner.readable

    def writable(self) -> bool:
        """Whether it was opened for writing."""
        return self._inner.writable

    def seekable(self) -> bool:
        """Files have positions."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer."""
        view = memoryview(buffer).cast("B")
        data = self._face._run(self._inner.read(len(view)))
        view[: len(data)] = data
        return len(data)

    def write(self, data: Any) -> int:
        """Write all of data at the position."""
        return self._face._run(self._inner.write(bytes(data)))

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Move the position."""
        return self._face._run(self._inner.seek(offset, whence))

    def truncate(self, size: int | None = None, /) -> int:
        """Set the size; None is the position."""
        size = self._inner.position if size is None else size
        self._face._run(self._inner.truncate(size))
        return size

    def pread(self, count: int, offset: int) -> bytes:
        """Read up to count bytes at an offset."""
        return self._face._run(self._inner.pread(count, offset))

    def pwrite(self, data: bytes, offset: int) -> int:
        """Write all of data at an offset."""
        return self._face._run(self._inner.pwrite(data, offset))

    def sync(self) -> None:
        """Make what was written durable."""
        self._face._run(self._inner.sync())

    def close(self) -> None:
        """Give it up; of an object of /s3 that publishes what was written, and fails if it cannot."""
        if self.closed:
            return
        try:
            super().close()
        finally:
            self._face._run(self._inner.close())


class CallClient(_Context):
    """Calls the methods of a service. Threads may share it."""

    _inner: calls.CallCore
    call = _do(calls.CallCore.call)
    close = _do(calls.CallCore.close)
    _leave = close


class CallServer(calls.Server):
    """Answers calls: handlers take a Call and give bytes; what they raise goes to the caller."""

    def __init__(self, threads: int = 32) -> None:
        super().__init__()
        self._pool = ThreadPoolExecutor(threads, "sigmaos handler")

    def serve_socket(self, sock: socket.socket, caller: Principal | None = None) -> calls.Connection:
        """Answer the calls of one connection, in the background."""
        c = self._connection(self._begin, caller)
        _Shell().link_stream(c, sock)
        return c

    def _begin(self, c: calls.Connection, call: calls.Call) -> None:
        self._pool.submit(self._answer, c, call)

    def _answer(self, c: calls.Connection, call: calls.Call) -> None:
        try:
            call.check()
            c.answer(call, self._handlers[call.method](call))
        except SigmaError as e:
            c.answer(call, e)
        except Exception as e:
            c.answer(call, SigmaError(f"{type(e).__name__}: {e}"))

    def close(self) -> None:
        """End all connections."""
        super().close()
        self._pool.shutdown(wait=False)


class Client(faces.OfClient, _Context):
    """A program's connection to a realm."""

    _inner: core.Core

    get = _do(core.Core.get)
    get_versioned = _do(core.Core.get_versioned)
    put = _do(core.Core.put)
    stat = _do(core.Core.stat)
    lstat = _do(core.Core.lstat)
    exists = _do(core.Core.exists)
    scandir = _do(core.Core.scandir)
    listdir = _do(core.Core.listdir)
    readlink = _do(core.Core.readlink)
    mkdir = _do(core.Core.mkdir)
    symlink = _do(core.Core.symlink)
    remove = _do(core.Core.remove)
    remove_tree = _do(core.Core.remove_tree)
    rename = _do(core.Core.rename)
    set_stat = _do(core.Core.set_stat)
    watch = _do(core.Core.watch)
    wait_for = _do(core.Core.wait_for)
    call_file = _do(core.Core.call_file)
    advance_epoch = _do(core.Core.advance_epoch)
    fence = _do(core.Core.fence)

    lease = _make(core.Core.lease, Lease)
    campaign = _make(core.Core.campaign, Leadership)
    join = _make(core.Core.join, Membership)
    publish = _do(core.Core.publish)
    members = _do(core.Core.members)
    dial = _do(core.Core.dial)
    dial_path = _do(core.Core.dial_path)
    open_file = _make(core.Core.open_file, File)

    spawn = _do(core.Core.spawn)
    wait_start = _do(core.Core.wait_start)
    wait_exit = _do(core.Core.wait_exit)
    evict = _do(core.Core.evict)
    kill = _do(core.Core.kill)
    freeze = _do(core.Core.freeze)
    thaw = _do(core.Core.thaw)
    procs = _do(core.Core.procs)
    logs = _do(core.Core.logs)
    started = _do(core.Core.started)
    exited = _do(core.Core.exited)
    wait_evict = _do(core.Core.wait_evict)

    @overload
    def open(self, path: str, mode: Literal["r", "w", "a", "x", "r+", "w+", "a+", "x+"] = "r") -> io.TextIOWrapper: ...
    @overload
    def open(self, path: str, mode: Literal["rb", "wb", "ab", "xb", "r+b", "w+b", "a+b", "x+b"]) -> BinaryIO: ...
    def open(self, path: str, mode: str = "r") -> Any:
        """Open a file as the builtin does: text, or bytes with b."""
        raw = self.open_file(path, mode)
        if raw.readable() and raw.writable():
            buffered: Any = io.BufferedRandom(raw, p.DATA_MAX)  # type: ignore[type-var,unused-ignore]
        elif raw.writable():
            buffered = io.BufferedWriter(raw, p.DATA_MAX)
        else:
            buffered = io.BufferedReader(raw, p.DATA_MAX)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, "utf-8")

    def follow(self, path: str) -> Iterator[core.Change]:
        """Tell what is in a directory, then what changes, for ever."""
        f = core.Follow(self._inner, path)
        while True:
            yield self._run(f.next())

    def calls(self, path: str) -> CallClient:
        """Give a client of the service at path: an endpoint, or a directory of them."""
        return CallClient(self._shell, calls.CallCore(lambda: self._inner.dial_path(path)))

    def close(self) -> None:
        """End the connection, and those to servers whose trees were walked through."""
        self._end()

    _leave = close


def _client(shell: _Shell, session: Session, sock: socket.socket, realm: str) -> Client:
    shell.link(session, sock)
    try:
        return Client(shell, shell.run(core.start(session, realm), _Scope()))
    except BaseException:
        session.fail(Lost("the client was closed"))
        raise


def open() -> Client:
    """Connect a proc to its machine. Once in a process; Unavailable if this is no proc."""
    return _client(_Shell(), Session(resettable=True), transport.of_proc(), "")


def connect(address: str | None = None, *, credential: str | None = None, realm: str | None = None) -> Client:
    """Connect a program outside: with a credential by the realm socket, or as root by the admin socket.

    What is not given is taken from the environment, as the command ``sigma`` does (see
    :func:`sigmaos.context.resolve`). The client goes on when sigmad dies and is started again.
    """
    where = resolve(address, credential, realm)

    def dial() -> socket.socket:
        return transport.connect(where.address, where.credential)

    return _client(_Shell(dial), Session(lasting=True), dial(), where.realm)
