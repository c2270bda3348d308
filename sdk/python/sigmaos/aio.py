"""The asyncio face: the same methods, to be awaited. Cancellation takes a request back."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from . import calls, core, transport
from . import messages as p
from .blocking import begin_again
from .context import resolve
from .errors import Canceled, Lost, SigmaError, Timeout, Unavailable
from .session import Connect, Effect, Event, Link, Op, Pause, Request, Session, Start, Within
from .types import Endpoint, Fence, Info, Principal

P = ParamSpec("P")
T = TypeVar("T")
X = TypeVar("X")


async def _happens(event: Event, seconds: float | None = None) -> bool:
    """Wait for an event; False if it does not happen within so many seconds."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def tell() -> None:
        if not future.done():
            future.set_result(None)

    def happened() -> None:  # perhaps in another thread
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(tell)

    event.tell(happened)
    try:
        await asyncio.wait_for(future, seconds)
        return True
    except asyncio.TimeoutError:
        return event.happened
    finally:
        event.untell(happened)


class _Pipe:
    """A socket that the loop reads and writes."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.loop = asyncio.get_running_loop()
        self._open = True
        self._writing = False
        self.loop.add_reader(sock, self._readable)

    def take(self) -> bool:
        """Read once; False at the end."""
        raise NotImplementedError

    def pull(self) -> bytes:
        """Take something to send off its queue."""
        raise NotImplementedError

    def back(self, rest: bytes) -> None:
        """Put back what was not sent."""
        raise NotImplementedError

    def over(self, cause: SigmaError | None) -> None:
        """Note that the socket has ended."""
        raise NotImplementedError

    def transmit(self) -> None:
        """Send what waits, now or when there is room."""
        while self._open and (data := self.pull()):
            try:
                n = self.sock.send(data)
                if n < len(data):
                    self.back(data[n:])
            except (BlockingIOError, InterruptedError):
                self.back(data)
                if not self._writing:
                    self._writing = True
                    self.loop.add_writer(self.sock, self._writable)
                return
            except OSError:
                return  # the reader finds out, too
        if self._writing and self._open:
            self._writing = False
            self.loop.remove_writer(self.sock)

    def _writable(self) -> None:
        self.transmit()

    def _readable(self) -> None:
        cause: SigmaError | None = None
        try:
            for _ in range(64):
                if not self._open:
                    return
                if not self.take():
                    break
            else:
                return
        except (BlockingIOError, InterruptedError):
            return
        except SigmaError as e:
            cause = e
        except OSError as e:
            cause = Lost(str(e))
        self.close()
        self.over(cause)

    def close(self) -> None:
        """Let go of the socket."""
        if not self._open:
            return
        self._open = False
        if not self.loop.is_closed():
            self.loop.remove_reader(self.sock)
            self.loop.remove_writer(self.sock)
        self.sock.close()


class _RecordPipe(_Pipe):
    def __init__(self, session: Session, sock: socket.socket) -> None:
        super().__init__(sock)
        self.session = session

    def take(self) -> bool:
        record, fds = transport.receive(self.sock)
        self.session.received(record, fds)
        return True

    def pull(self) -> bytes:
        mine = self.session.outbox and self.session.transmit == self.transmit
        return self.session.outbox.popleft() if mine else b""

    def back(self, rest: bytes) -> None:
        self.session.outbox.appendleft(rest)

    def over(self, cause: SigmaError | None) -> None:
        if self.session.transmit == self.transmit:
            self.session.lost(cause)


class _StreamPipe(_Pipe):
    def __init__(self, connection: calls.Connection, sock: socket.socket) -> None:
        super().__init__(sock)
        self.connection = connection

    def take(self) -> bool:
        data = self.sock.recv(1 << 18)
        self.connection.feed(data)
        return bool(data)

    def pull(self) -> bytes:
        data = bytes(self.connection.out)
        self.connection.out.clear()
        return data

    def back(self, rest: bytes) -> None:
        self.connection.out[:0] = rest

    def over(self, cause: SigmaError | None) -> None:
        self.connection.fail(cause or Lost("the connection ended"))


class _Shell:
    """Carries out effects."""

    def __init__(self, dial: Callable[[], socket.socket] | None = None) -> None:
        self._dial = dial
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, gen: Op[T]) -> T:
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
                value = await self._perform(effect)
            except BaseException as e:
                error = e

    async def _perform(self, effect: Effect) -> Any:
        match effect:
            case Request():
                return await self._request(effect)
            case Pause():
                if effect.event is not None:
                    return await _happens(effect.event, effect.seconds)
                await asyncio.sleep(effect.seconds or 0)
                return False
            case Within():
                return await self._within(effect)
            case Start():
                return self.start(effect.gen)
            case Connect():
                if self._dial is None:
                    raise Unavailable("there is nothing to connect to")
                return await asyncio.to_thread(self._dial)
            case Link():
                self.link(effect.session, effect.sock)
            case calls.LinkStream():
                self.link_stream(effect.connection, effect.sock)
        return None

    async def _request(self, r: Request) -> tuple[p.Message, list[int]]:
        try:
            r.session.submit(r)
            if not r.done.happened:
                await _happens(r.done)
        except BaseException:
            r.session.cancel(r)
            r.abandon()
            raise
        return r.result()

    async def _within(self, w: Within) -> Any:
        task = asyncio.ensure_future(self.run(w.gen))
        loop = asyncio.get_running_loop()

        def cancel() -> None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(task.cancel)

        if w.event is not None:
            w.event.tell(cancel)
        try:
            return await asyncio.wait_for(task, w.seconds)
        except asyncio.TimeoutError:
            raise Timeout() from None
        except asyncio.CancelledError:
            if w.event is not None and w.event.happened and task.cancelled():
                raise Canceled() from None
            raise
        finally:
            if w.event is not None:
                w.event.untell(cancel)

    def start(self, gen: Op[None]) -> Event:
        """Run a generator in a task."""
        ended = Event()

        async def run() -> None:
            try:
                with contextlib.suppress(SigmaError):
                    await self.run(gen)
            finally:
                ended.set()

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return ended

    def link(self, session: Session, sock: socket.socket) -> None:
        """Have a session use a socket."""
        pipe = _RecordPipe(session, sock)
        session.transmit, session.hang_up = pipe.transmit, pipe.close
        session.resume = lambda: self._resume(session)
        if session.broken is not None:
            pipe.close()

    def _resume(self, session: Session) -> None:
        self.start(begin_again(session))

    def link_stream(self, connection: calls.Connection, sock: socket.socket) -> None:
        """Have a connection of calls use a socket."""
        pipe = _StreamPipe(connection, sock)
        connection.transmit, connection.hang_up = pipe.transmit, pipe.close
        pipe.transmit()


class _Face:
    """What a program sees of a core object."""

    def __init__(self, shell: _Shell, inner: Any) -> None:
        self._shell, self._inner = shell, inner


def _do(f: Callable[Concatenate[Any, P], Op[T]]) -> Callable[Concatenate[_Face, P], Coroutine[Any, Any, T]]:
    @functools.wraps(f)
    async def run(self: _Face, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._shell.run(f(self._inner, *args, **kwargs))

    return run


def _make(
    f: Callable[Concatenate[Any, P], Op[T]], face: Callable[[_Shell, T], X]
) -> Callable[Concatenate[_Face, P], Coroutine[Any, Any, X]]:
    @functools.wraps(f)
    async def run(self: _Face, /, *args: P.args, **kwargs: P.kwargs) -> X:
        return face(self._shell, await self._shell.run(f(self._inner, *args, **kwargs)))

    return run


class Lease(_Face):
    """A lease that is renewed until it is revoked or lost. As a context it is revoked at the end."""

    _inner: core.Lease

    @property
    def id(self) -> int:
        """What ``put`` takes."""
        return self._inner.id

    @property
    def lost(self) -> bool:
        """Whether it is not kept any more."""
        return self._inner.lost.happened

    async def wait_lost(self) -> None:
        """Wait until it is not kept any more."""
        await _happens(self._inner.lost)

    revoke = _do(core.Lease.revoke)

    async def __aenter__(self) -> Lease:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.revoke()


class Leadership(_Face):
    """Won by ``campaign``. As a context it is resigned at the end."""

    _inner: core.Leadership

    @property
    def fence(self) -> Fence:
        """What the leader's requests carry."""
        return self._inner.fence

    @property
    def lost(self) -> bool:
        """Whether the program may lead no more."""
        return self._inner.lost.happened

    async def wait_lost(self) -> None:
        """Wait until the program may lead no more."""
        await _happens(self._inner.lost)

    resign = _do(core.Leadership.resign)

    async def __aenter__(self) -> Leadership:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.resign()


class Membership(_Face):
    """An endpoint that is published in a directory. As a context it is left at the end."""

    _inner: core.Membership

    @property
    def path(self) -> str:
        """Where it is published."""
        return self._inner.path

    leave = _do(core.Membership.leave)

    async def __aenter__(self) -> Membership:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leave()


class Listener(_Face):
    """An endpoint of this proc."""

    _inner: core.Listener

    @property
    def endpoint(self) -> Endpoint:
        """What others dial."""
        assert self._inner.endpoint is not None
        return self._inner.endpoint

    accept = _do(core.Listener.accept)
    close = _do(core.Listener.close)

    async def __aenter__(self) -> Listener:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class File(_Face):
    """An open file with a position."""

    _inner: core.OpenFile

    @property
    def position(self) -> int:
        """Where the next read or write is."""
        return self._inner.position

    async def read(self, count: int = -1) -> bytes:
        """Read up to count bytes, or to the end."""
        return await self._shell.run(self._inner.read_all() if count < 0 else self._inner.read(count))

    write = _do(core.OpenFile.write)
    pread = _do(core.OpenFile.pread)
    pwrite = _do(core.OpenFile.pwrite)
    read_if = _do(core.OpenFile.read_if)
    write_if = _do(core.OpenFile.write_if)
    seek = _do(core.OpenFile.seek)
    truncate = _do(core.OpenFile.truncate)
    sync = _do(core.OpenFile.sync)
    close = _do(core.OpenFile.close)

    async def __aenter__(self) -> File:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class CallClient(_Face):
    """Calls the methods of a service. Tasks may share it."""

    _inner: calls.CallCore
    call = _do(calls.CallCore.call)
    close = _do(calls.CallCore.close)

    async def __aenter__(self) -> CallClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class CallServer:
    """Answers calls: handlers take a Call and give bytes; what they raise goes to the caller."""

    def __init__(self) -> None:
        self._handlers: dict[str, Callable[[calls.Call], Awaitable[bytes]]] = {}
        self._connections: list[calls.Connection] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def handle(self, name: str, handler: Callable[[calls.Call], Awaitable[bytes]]) -> None:
        """Register a method, as in ``kv.KV/Get``."""
        self._handlers[name] = handler

    async def serve(self, listener: Listener) -> None:
        """Answer everybody who dials, until the listener is closed."""
        while True:
            try:
                sock, who = await listener.accept()
            except (Unavailable, Lost):
                return
            self.serve_socket(sock, who)

    def serve_socket(self, sock: socket.socket, caller: Principal | None = None) -> calls.Connection:
        """Answer the calls of one connection, in the background."""
        def begin(call: calls.Call) -> None:
            task = asyncio.get_running_loop().create_task(self._answer(c, call))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

            def cancel() -> None:
                task.cancel()

            call.canceled.tell(cancel)

        c = calls.Connection(begin, frozenset(self._handlers), caller)
        self._connections = [x for x in self._connections if x.error is None] + [c]
        _Shell().link_stream(c, sock)
        return c

    async def _answer(self, c: calls.Connection, call: calls.Call) -> None:
        try:
            call.check()
            c.answer(call, await self._handlers[call.method](call))
        except SigmaError as e:
            c.answer(call, e)
        except asyncio.CancelledError:
            c.answer(call, Canceled())
        except Exception as e:
            c.answer(call, SigmaError(f"{type(e).__name__}: {e}"))

    def close(self) -> None:
        """End all connections."""
        connections, self._connections = self._connections, []
        for c in connections:
            c.fail(Lost("the server was closed"))


class Client(_Face):
    """A program's connection to a realm."""

    _inner: core.Core

    @property
    def info(self) -> Info:
        """Who and where the program is."""
        return self._inner.info

    @property
    def connected(self) -> bool:
        """Whether the connection has not ended for good. It goes on when sigmad dies and comes back."""
        return self._inner.session.broken is None

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
    listen = _make(core.Core.listen, Listener)
    open_file = _make(core.Core.open_file, File)

    spawn = _do(core.Core.spawn)
    wait_start = _do(core.Core.wait_start)
    wait_exit = _do(core.Core.wait_exit)
    evict = _do(core.Core.evict)
    kill = _do(core.Core.kill)
    freeze = _do(core.Core.freeze)
    thaw = _do(core.Core.thaw)
    procs = _do(core.Core.procs)
    usage = _do(core.Core.usage)
    logs = _do(core.Core.logs)
    started = _do(core.Core.started)
    exited = _do(core.Core.exited)
    wait_evict = _do(core.Core.wait_evict)

    async def streams(self, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the endpoint or service at path; gives asyncio streams."""
        sock = await self.dial_path(path)
        return await asyncio.open_unix_connection(sock=sock) if sock.family == socket.AF_UNIX else (
            await asyncio.open_connection(sock=sock))

    async def follow(self, path: str) -> AsyncIterator[core.Change]:
        """Tell what is in a directory, then what changes, for ever."""
        f = core.Follow(self._inner, path)
        while True:
            yield await self._shell.run(f.next())

    def calls(self, path: str) -> CallClient:
        """Give a client of the service at path: an endpoint, or a directory of them."""
        return CallClient(self._shell, calls.CallCore(lambda: self._inner.dial_path(path)))

    async def close(self) -> None:
        """End the connection, and those to servers whose trees were walked through."""
        self._inner.session.fail(Lost("the client was closed"))
        for h in list(self._inner._mounts.values()):
            h.session.fail(Lost("the client was closed"))
        for task in list(self._shell._tasks):
            task.cancel()
        await asyncio.sleep(0)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def _client(shell: _Shell, session: Session, sock: socket.socket, realm: str) -> Client:
    shell.link(session, sock)
    try:
        return Client(shell, await shell.run(core.start(session, realm)))
    except BaseException:
        session.fail(Lost("the client was closed"))
        raise


async def open() -> Client:
    """Connect a proc to its machine. Once in a process; Unavailable if this is no proc."""
    return await _client(_Shell(), Session(resettable=True), transport.of_proc(), "")


async def connect(address: str | None = None, *, credential: str | None = None, realm: str | None = None) -> Client:
    """Connect a program outside, as :func:`sigmaos.connect` does."""
    where = resolve(address, credential, realm)

    def dial() -> socket.socket:
        return transport.connect(where.address, where.credential)

    return await _client(_Shell(dial), Session(lasting=True), await asyncio.to_thread(dial), where.realm)
