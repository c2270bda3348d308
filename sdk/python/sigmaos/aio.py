"""The asyncio face: the same methods, to be awaited. Cancellation takes a request back."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from . import calls, core, faces, transport
from . import messages as p
from .blocking import begin_again
from .context import resolve
from .errors import Canceled, Lost, SigmaError, Timeout, Unavailable
from .session import Connect, Effect, Event, Link, Op, Pause, Request, Session, Start, Within
from .types import Principal

P = ParamSpec("P")
T = TypeVar("T")
X = TypeVar("X")
F = TypeVar("F", bound="_Face")


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

    def __init__(self, port: Session | calls.Connection, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.port, self.sock = port, sock
        port.transmit, port.hang_up = self.transmit, self.close
        self.loop = asyncio.get_running_loop()
        self._open, self._writing = True, False
        self.loop.add_reader(sock, self._readable)
        if isinstance(port, calls.Connection) and port.server:
            self._look(port)

    def _look(self, port: calls.Connection) -> None:
        port.look()
        if self._open:
            self.loop.call_later(1, self._look, port)

    def transmit(self) -> None:
        """Send what waits, now or when there is room."""
        while self._open and self.port.transmit == self.transmit and (data := self.port.pull()):
            try:
                n = self.sock.send(data)
                if n < len(data):
                    self.port.back(data[n:])
            except (BlockingIOError, InterruptedError):
                self.port.back(data)
                if not self._writing:
                    self._writing = True
                    self.loop.add_writer(self.sock, self.transmit)
                return
            except OSError:
                return  # the reader finds out, too
        if self._writing and self._open:
            self._writing = False
            self.loop.remove_writer(self.sock)

    def _readable(self) -> None:
        cause: SigmaError | None = None
        try:
            for _ in range(64):
                if not self._open:
                    return
                if not transport.take(self.port, self.sock):
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
        if self.port.transmit == self.transmit:
            self.port.lost(cause)

    def close(self) -> None:
        """Let go of the socket."""
        if not self._open:
            return
        self._open = False
        if not self.loop.is_closed():
            self.loop.remove_reader(self.sock)
            self.loop.remove_writer(self.sock)
        self.sock.close()


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
        pipe = _Pipe(session, sock)
        session.resume = lambda: self.start(begin_again(session))
        if session.broken is not None:
            pipe.close()

    def link_stream(self, connection: calls.Connection, sock: socket.socket) -> None:
        """Have a connection of calls use a socket."""
        _Pipe(connection, sock).transmit()


class _Face:
    """What a program sees of a core object."""

    def __init__(self, shell: _Shell, inner: Any) -> None:
        self._shell, self._inner = shell, inner


class _Context(_Face):
    """A face that is given up at the end of a context."""

    async def _leave(self) -> None:
        raise NotImplementedError

    async def __aenter__(self: F) -> F:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._leave()


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


class Lease(faces.OfLease, _Context):
    """A lease that is renewed until it is revoked or lost. As a context it is revoked at the end."""

    async def wait_lost(self) -> None:
        """Wait until it is not kept any more."""
        await _happens(self._inner.lost)

    revoke = _do(core.Lease.revoke)
    _leave = revoke


class Leadership(faces.OfLeadership, _Context):
    """Won by ``campaign``. As a context it is resigned at the end."""

    async def wait_lost(self) -> None:
        """Wait until the program may lead no more."""
        await _happens(self._inner.lost)

    resign = _do(core.Leadership.resign)
    _leave = resign


class Membership(faces.OfMembership, _Context):
    """An endpoint that is published in a directory. As a context it is left at the end."""

    leave = _do(core.Membership.leave)
    _leave = leave


class File(_Context):
    """An open file with a position."""

    _inner: core.OpenFile

    async def read(self, count: int = -1) -> bytes:
        """Read up to count bytes, or to the end."""
        return await self._shell.run(self._inner.read_all() if count < 0 else self._inner.read(count))

    write = _do(core.OpenFile.write)
    pread = _do(core.OpenFile.pread)
    pwrite = _do(core.OpenFile.pwrite)
    seek = _do(core.OpenFile.seek)
    truncate = _do(core.OpenFile.truncate)
    sync = _do(core.OpenFile.sync)
    close = _do(core.OpenFile.close)
    _leave = close


class CallClient(_Context):
    """Calls the methods of a service. Tasks may share it."""

    _inner: calls.CallCore
    call = _do(calls.CallCore.call)
    close = _do(calls.CallCore.close)
    _leave = close


class CallServer(calls.Server):
    """Answers calls: handlers take a Call and give bytes, awaited; what they raise goes to the caller."""

    def __init__(self) -> None:
        super().__init__()
        self._tasks: set[asyncio.Task[None]] = set()

    def serve_socket(self, sock: socket.socket, caller: Principal | None = None) -> calls.Connection:
        """Answer the calls of one connection, in the background."""
        c = self._connection(self._begin, caller)
        _Shell().link_stream(c, sock)
        return c

    def _begin(self, c: calls.Connection, call: calls.Call) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(c, call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

        def cancel() -> None:
            task.cancel()

        call.canceled.tell(cancel)

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

    async def streams(self, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the endpoint or service at path; gives asyncio streams."""
        return await asyncio.open_connection(sock=await self.dial_path(path))

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
        self._end()
        for task in list(self._shell._tasks):
            task.cancel()
        await asyncio.sleep(0)
    _leave = close


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
