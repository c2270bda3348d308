"""Calls between procs (docs/reference/call.md), without input and output: bytes in, bytes out.

Unary calls, as client and server. Streams of messages are refused.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from .codec import STR, Reader
from .errors import (
    Busy, Invalid, Lost, Redirected, SigmaError, Stale, Timeout, TooBig, Unavailable, Unsupported, of_kind,
)
from .session import Effect, Event, Op, Pause, Within
from .types import Principal

HELLO, NAME, CALL, DATA, REPLY, FAIL, CANCEL, CREDIT, PING, PONG, LEAVING = range(1, 12)
FIRST, MORE, CLOSE, STREAM, DEADLINE, TRACE, REFUSED, BULK = (1 << i for i in range(8))
MAGIC = b"sigma call/1"
HEAD = struct.Struct("<IBBHI")
PIECE = 128 << 10
BODY_MOST = PIECE + 260
WINDOWS = (8 << 20, 16 << 20)
MESSAGE_MOST, CALLS_MOST, NAMES_MOST, TRIES = 4 << 20, 1024, 1024, 4
OUT_MOST, ANSWERS_MOST = 32 << 20, 64 << 20  # bytes to send, and of answers that wait for credit
HELLO_WAIT, STALL_WAIT = 10, 30  # seconds


def frame(kind: int, flags: int = 0, method: int = 0, call: int = 0, body: bytes = b"") -> bytes:
    """Give the bytes of a frame."""
    return HEAD.pack(len(body), kind, flags, method, call) + body


def _cost(n: int) -> int:
    return n + 64


def _lane(n: int) -> int:
    return 1 if n > PIECE else 0


class Pending:
    """A call that waits for its answer."""

    def __init__(self, id: int) -> None:
        self.id, self.done, self.reply = id, Event(), bytearray()
        self.total = -1
        self.error: SigmaError | None = None
        self.unseen, self.owner = False, ""


class Call:
    """A call that a handler answers: argument, who calls, until when (monotonic), bytes of a trace context."""

    def __init__(self, id: int, method: str, caller: Principal) -> None:
        self.id, self.method, self.caller = id, method, caller
        self.deadline: float | None = None
        self.trace = b""
        #: Happens when nobody wants an answer any more.
        self.canceled, self.total, self._arg = Event(), 0, bytearray()

    @property
    def arg(self) -> bytes:
        """The argument."""
        return bytes(self._arg)

    def check(self) -> None:
        """Raise Timeout if it is too late."""
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise Timeout("the caller's time is over")


class Connection:
    """One side of a connection. ``transmit`` is called when ``out`` has bytes; methods are safe for threads."""

    def __init__(self, on_call: Callable[[Call], None] | None = None, methods: frozenset[str] = frozenset(),
                 caller: Principal | None = None) -> None:
        self.server = on_call is not None
        self._on_call, self._methods, self._caller = on_call, methods, caller or Principal()
        self.lock = threading.RLock()
        self.out = bytearray(frame(HELLO, body=MAGIC))
        self.transmit: Callable[[], None] = lambda: None
        self.hang_up: Callable[[], None] = lambda: None
        self.error: SigmaError | None = None
        self.ended, self.leaving, self._greeted, self._in = Event(), False, False, bytearray()
        self._frames_read = self._sent = 0
        self._seen, self._moved = [0, 0], [time.monotonic()] * 2  # by look: those two, and when they changed
        self._credit, self._owed, self._held = list(WINDOWS), [0, 0], [0, 0]
        self._blocked: deque[tuple[int, bytes, bytes]] = deque()  # call, head, message
        self._numbers: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._next = 0
        self.pending: dict[int, Pending] = {}
        self.calls: dict[int, Call] = {}

    @property
    def good(self) -> bool:
        """Whether new calls can be made."""
        return self.error is None and not self.leaving

    # What is sent.

    def begin(self, method: str, arg: bytes, left: float | None = None) -> Pending:
        """Make a call."""
        if len(arg) > MESSAGE_MOST:
            raise TooBig(f"the argument has {len(arg)} bytes; {MESSAGE_MOST} are possible", method)
        name = method.encode()
        if not 0 < len(name) <= 256:
            raise Invalid(f"a method's name has {len(name)} bytes")
        with self.lock:
            if self.error is not None or self.leaving:
                raise self.error or Unavailable("the server is leaving")
            if len(self.pending) >= 4096:
                raise Busy("too many calls are under way on this connection")
            if (number := self._numbers.get(method)) is None:
                number = self._numbers[method] = len(self._numbers)
                if number >= NAMES_MOST:
                    raise TooBig(f"more than {NAMES_MOST} methods on one connection")
                self.out += frame(NAME, method=number, body=name)
            self._next = self._next % 0xFFFFFFFF + 1
            p = self.pending[self._next] = Pending(self._next)
            flags, opening = 0, b""
            if left is not None:
                flags, opening = DEADLINE, max(1, int(left * 1e9)).to_bytes(8, "little")
            self._queue(p.id, HEAD.pack(0, CALL, flags, number, p.id) + opening, arg)
        self.transmit()
        return p

    def abandon(self, p: Pending) -> None:
        """Want no answer any more."""
        with self.lock:
            if self.pending.pop(p.id, None) is None or self.error is not None:
                return
            if p.total >= 0:
                self._used(p.total)
            if not self._unqueue(p.id):
                self.out += frame(CANCEL, call=p.id)
        self.transmit()

    def answer(self, call: Call, reply: bytes | SigmaError) -> None:
        """End a call, with its answer or an error."""
        if not isinstance(reply, SigmaError) and len(reply) > MESSAGE_MOST:
            reply = TooBig(f"the answer has {len(reply)} bytes; {MESSAGE_MOST} are possible")
        with self.lock:
            if self.calls.get(call.id) is not call or self.error is not None:
                return
            if sum(len(message) for _, _, message in self._blocked) > ANSWERS_MOST:
                reply = Busy("too many answers wait for the caller", "", "read answers, or use more connections")
            if isinstance(reply, SigmaError) and not call.canceled.happened:
                self._fail_call(call.id, reply, 0)
            if isinstance(reply, SigmaError) or call.canceled.happened:
                self._end_call(call)
            else:
                self._queue(call.id, HEAD.pack(0, REPLY, 0, 0, call.id), reply)  # which ends the call
        self._send()

    def _end_call(self, call: Call) -> None:
        del self.calls[call.id]
        self._used(call.total)

    def _send(self) -> None:
        if self.server and len(self.out) > OUT_MOST:
            self.fail(TooBig("the peer reads nothing"))
        self.transmit()

    def look(self) -> None:
        """End the connection of a client that takes too long for its hello, half a frame, or to read."""
        now = time.monotonic()
        with self.lock:
            rests = self._greeted and not self._in, not self.out
            for i, n in enumerate((self._frames_read, self._sent)):
                if rests[i] or n != self._seen[i]:
                    self._seen[i], self._moved[i] = n, now
            late = now - self._moved[0] > (STALL_WAIT if self._greeted else HELLO_WAIT)
        if late or now - self._moved[1] > STALL_WAIT:
            self.fail(Invalid("the client says nothing, or half, or reads nothing"))

    def _fail_call(self, id: int, e: SigmaError, flags: int) -> None:
        if isinstance(e, Redirected) and e.owner and not flags:
            self.out += frame(FAIL, FIRST, 0, id, e.owner.encode()[:255])
            return
        body = bytearray(e.kind.to_bytes(2, "little"))
        for text in (e.path, e.message, e.hint):
            STR.put(body, text.encode("utf-8", "surrogateescape")[:1024].decode("utf-8", "surrogateescape"))
        self.out += frame(FAIL, flags, 0, id, bytes(body))

    def leave(self) -> None:
        """Tell the callers to make new calls elsewhere."""
        with self.lock:
            self.out += frame(LEAVING)
        self.transmit()

    def _unqueue(self, id: int) -> bool:
        before, self._blocked = self._blocked, deque(x for x in self._blocked if x[0] != id)
        return len(before) != len(self._blocked)

    def _queue(self, id: int, head: bytes, message: bytes) -> None:
        self._blocked.append((id, head, message))
        self._unblock()

    def _unblock(self) -> None:
        while self._blocked:
            id, head, message = self._blocked[0]
            lane, cost = _lane(len(message)), _cost(len(message))
            if self._credit[lane] < cost:
                return
            self._credit[lane] -= cost
            self._blocked.popleft()
            if self.server:
                self._end_call(self.calls[id])
            _, kind, flags, method, _ = HEAD.unpack_from(head)
            opening, piece, rest = head[HEAD.size :], message, b""
            flags |= FIRST
            if len(message) > PIECE:
                piece, rest = message[:PIECE], message[PIECE:]
                flags |= MORE
                opening += len(message).to_bytes(4, "little")
            self.out += frame(kind, flags, method, id, opening + piece)
            while rest:
                piece, rest = rest[:PIECE], rest[PIECE:]
                self.out += frame(DATA, MORE if rest else 0, 0, id, piece)

    # What comes.

    def feed(self, data: bytes) -> None:
        """Take bytes; none are the end."""
        try:
            if not data:
                raise Lost("the connection to the server ended")
            with self.lock:
                self._in += data
                begun, finished = self._frames()
        except SigmaError as e:
            self.fail(e)
            return
        for p in finished:
            p.done.set()
        self._send()
        for call in begun:
            assert self._on_call is not None
            self._on_call(call)
        if self.leaving and not self.pending:
            self.fail(Lost("the server has left"))

    def pull(self) -> bytes:
        """Take bytes to send."""
        with self.lock:
            data = bytes(self.out)
            self.out.clear()
            self._sent += len(data)
            return data

    def back(self, rest: bytes) -> None:
        """Put back what could not be sent."""
        with self.lock:
            self.out[:0] = rest
            self._sent -= len(rest)

    def lost(self, cause: SigmaError | None = None) -> None:
        """Note that the socket has ended."""
        self.fail(cause or Lost("the connection ended"))

    def fail(self, e: SigmaError) -> None:
        """End the connection."""
        with self.lock:
            if self.error is not None:
                return
            self.error = e
            pending, self.pending = list(self.pending.values()), {}
            calls, self.calls = list(self.calls.values()), {}
        for p in pending:
            p.error = e if isinstance(e, (Lost, Unsupported)) else Lost(str(e))
            p.done.set()
        for c in calls:
            c.canceled.set()
        self.ended.set()
        self.hang_up()

    def _frames(self) -> tuple[list[Call], list[Pending]]:
        begun: list[Call] = []
        finished: list[Pending] = []
        at = 0
        while len(self._in) - at >= HEAD.size:
            n, kind, flags, method, id = HEAD.unpack_from(self._in, at)
            if n > BODY_MOST or not HELLO <= kind <= LEAVING:
                raise Invalid("a frame that cannot be")
            if len(self._in) - at < HEAD.size + n:
                break
            body = bytes(self._in[at + HEAD.size : at + HEAD.size + n])
            at += HEAD.size + n
            self._frames_read += 1
            if not self._greeted:
                if kind != HELLO or body != MAGIC:
                    hint = "is it a service of calls that is published there?"
                    raise Unsupported("the peer does not speak this protocol", "", hint)
                self._greeted = True
            elif kind == CREDIT:
                self._more_credit(flags, id, body)
            elif kind == PING:
                self.out += frame(PONG)
            elif kind == PONG:
                pass
            elif not self.server:
                if (p := self._of_server(kind, flags, id, body)) is not None:
                    finished.append(p)
            elif (call := self._of_client(kind, flags, method, id, body)) is not None:
                begun.append(call)
        del self._in[:at]
        return begun, finished

    def _more_credit(self, flags: int, id: int, body: bytes) -> None:
        if id:
            return
        lane, n = 1 if flags & BULK else 0, int.from_bytes(body, "little")
        self._credit[lane] += n
        if len(body) != 4 or not n or self._credit[lane] > WINDOWS[lane]:
            raise Invalid("more credit than was used")
        self._unblock()

    def _receive(self, total: int) -> None:
        lane = _lane(total)
        self._held[lane] += _cost(total)
        if self._held[lane] > WINDOWS[lane]:
            raise Invalid("more came than there was room for")

    def _used(self, total: int) -> None:
        lane = _lane(total)
        self._held[lane] -= _cost(total)
        self._owed[lane] += _cost(total)
        if lane or self._owed[lane] >= WINDOWS[0] // 4:
            owed, self._owed[lane] = self._owed[lane], 0
            self.out += frame(CREDIT, BULK if lane else 0, 0, 0, owed.to_bytes(4, "little"))

    def _first(self, flags: int, body: bytes) -> tuple[int, bytes]:
        """Read the length of a message that begins, and what of it is there."""
        if not flags & MORE:
            if len(body) > PIECE:
                raise Invalid("a long message is not in pieces")
            return len(body), body
        total = int.from_bytes(body[:4], "little")
        if len(body) < 4 or not PIECE < total <= WINDOWS[1] - 64 or total <= len(body) - 4:
            raise Invalid("a message in pieces that cannot be")
        return total, body[4:]

    def _ignore(self, flags: int, body: bytes) -> None:
        total, _ = self._first(flags, body)
        self._receive(total)
        self._used(total)

    def _of_server(self, kind: int, flags: int, id: int, body: bytes) -> Pending | None:
        p = self.pending.get(id)
        if kind == LEAVING:
            self.leaving = True
            return None
        if kind == REPLY:
            owner, body = _owner(flags, body)
            if p is None:
                self._ignore(flags, body)
                return None
            total, body = self._first(flags, body)
            self._receive(total)
            if p.total >= 0:
                raise Invalid("a second answer")
            p.total, p.owner = total, owner
        elif kind == DATA:
            if p is None:
                return None
            if p.total < 0:
                raise Invalid("a piece of no message")
        elif kind == FAIL:
            if p is None:
                return None
            p.error, p.unseen = _failure(flags, body), bool(flags & REFUSED)
            del self.pending[id]
            return p
        else:
            raise Invalid(f"a server does not send frames of kind {kind}")
        p.reply += body
        if len(p.reply) > p.total or p.total > MESSAGE_MOST:
            raise Invalid("an answer is longer than it said, or than is possible")
        if len(p.reply) < p.total:
            return None
        self._used(p.total)
        del self.pending[id]
        return p

    def _of_client(self, kind: int, flags: int, method: int, id: int, body: bytes) -> Call | None:
        call = self.calls.get(id)
        if kind == NAME:
            if method >= NAMES_MOST or not 0 < len(body) <= 256:
                raise Invalid("a name that cannot be")
            self._names[method] = body.decode("utf-8", "surrogateescape")
            return None
        if kind == CANCEL:
            if call is not None:
                call.canceled.set()
                if len(call._arg) < call.total or self._unqueue(id):
                    self._end_call(call)
            return None
        if kind == DATA:
            if call is None:
                if flags & FIRST and flags & MORE:  # of a stream that was refused, with credit of the connection
                    self._ignore(flags, body)
                return None
            if len(call._arg) >= call.total:
                raise Invalid("a piece of no message")
        elif kind == CALL:
            if (call := self._new_call(flags, method, id, body)) is None:
                return None
            body = b""
        else:
            raise Invalid(f"a client does not send frames of kind {kind}")
        call._arg += body
        if len(call._arg) > call.total:
            raise Invalid("an argument is longer than it said")
        return call if len(call._arg) == call.total else None

    def _new_call(self, flags: int, method: int, id: int, body: bytes) -> Call | None:
        name = self._names.get(method)
        if name is None or id == 0 or id in self.calls:
            raise Invalid("a call that cannot be")
        call = Call(id, name, self._caller)
        if flags & DEADLINE:
            left, body = int.from_bytes(body[:8], "little"), body[8:]
            if not 0 < left <= 1 << 62:
                raise Invalid("a call has no time left")
            call.deadline = time.monotonic() + left / 1e9
        if flags & TRACE:
            if len(body) < 25:
                raise Invalid("a call is cut off within its trace context")
            call.trace, body = body[:25], body[25:]
        call.total, piece = self._first(flags, body)
        self._receive(call.total)
        refusal: SigmaError | None = None
        if name not in self._methods:
            refusal = Unsupported(f"the server has no method {name}", "", "is another service published there?")
        elif flags & STREAM:
            refusal = Invalid(f"{name} is called in another way than it is: it does not stream")
        elif len(self.calls) >= CALLS_MOST:
            refusal = Busy("too many calls are under way on this connection", "", "use more connections")
        elif call.total > MESSAGE_MOST:
            refusal = TooBig(f"the argument has {call.total} bytes; {MESSAGE_MOST} are possible")
        if refusal is not None:
            self._fail_call(id, refusal, REFUSED)
            self._used(call.total)
            return None
        call._arg += piece
        self.calls[id] = call
        return call


def _owner(flags: int, body: bytes) -> tuple[str, bytes]:
    if not flags & BULK:
        return "", body
    n = body[0] if body else 0
    if len(body) < 1 + n:
        raise Invalid("an answer is cut off within its owner")
    return body[1 : 1 + n].decode(errors="replace"), body[1 + n :]


def _failure(flags: int, body: bytes) -> SigmaError:
    owner, body = _owner(flags, body)
    if flags & FIRST:
        return Redirected(body.decode(errors="replace"))
    r = Reader(body)
    kind, path, message, hint = r.int(2), STR.take(r), STR.take(r), STR.take(r)
    r.finish()
    if owner and kind == Stale.KIND:
        return Redirected(owner, message, path, hint)
    return of_kind(kind, message, path, hint)


class Server:
    """What the servers of both shells have in common."""

    def __init__(self) -> None:
        self._handlers: dict[str, Callable[[Call], Any]] = {}
        self._connections: list[Connection] = []

    def handle(self, name: str, handler: Callable[[Call], Any]) -> None:
        """Register a method, as in ``kv.KV/Get``."""
        self._handlers[name] = handler

    def _connection(self, begin: Callable[[Connection, Call], None], caller: Principal | None) -> Connection:
        c = Connection(lambda call: begin(c, call), frozenset(self._handlers), caller)
        self._connections = [x for x in self._connections if x.error is None] + [c]
        return c

    def close(self) -> None:
        """End all connections."""
        for c in self._connections:
            c.fail(Lost("the server was closed"))


class LinkStream(Effect):
    """Have a connection of calls use a socket."""

    def __init__(self, connection: Connection, sock: socket.socket) -> None:
        self.connection, self.sock = connection, sock


class CallCore:
    """Makes calls at what ``dial`` connects to, which may be another server each time."""

    def __init__(self, dial: Callable[[], Op[socket.socket]]) -> None:
        self._dial = dial
        self._conn: Connection | None = None
        self._lock = threading.Lock()
        self._dialing: Event | None = None
        self._closed = False

    def call(self, method: str, arg: bytes = b"", *, timeout: float | None = None,
             idempotent: bool = False) -> Op[bytes]:
        """Call a method, at most once unless it is ``idempotent``. Lost: unknown whether it took effect."""
        if timeout is None:
            return (yield from self._try(method, arg, None, idempotent))
        until = time.monotonic() + timeout
        reply: bytes = yield Within(self._try(method, arg, until, idempotent), timeout)
        return reply

    def _try(self, method: str, arg: bytes, until: float | None, idempotent: bool) -> Op[bytes]:
        for rest in range(TRIES - 1, -1, -1):
            conn = yield from self._connect()
            left = None
            if until is not None:
                left = until - time.monotonic()
                if left <= 0:
                    raise Timeout("", method)
            unseen, lost = False, False
            try:
                p = conn.begin(method, arg, left)
            except (Lost, Unavailable) as e:  # it ended just now
                error: SigmaError = e
                unseen = True
            else:
                try:
                    yield Pause(None, p.done)
                except BaseException:
                    conn.abandon(p)
                    raise
                if p.error is None:
                    return bytes(p.reply)
                error, unseen, lost = p.error, p.unseen, isinstance(p.error, Lost)
            again = (unseen and not isinstance(error, (Invalid, Unsupported, TooBig))) or (idempotent and lost)
            if not rest or not again:
                error.path = error.path or method
                raise error
        raise AssertionError

    def _connect(self) -> Op[Connection]:
        if self._closed:
            raise Unavailable("the client is closed")
        if self._conn is not None and self._conn.good:
            return self._conn
        with self._lock:
            turn = self._dialing
            mine = self._dialing = turn or Event()
        if turn is not None:  # another caller connects
            yield Pause(None, turn)
            return (yield from self._connect())
        try:
            conn = Connection()
            yield LinkStream(conn, (yield from self._dial()))
            self._conn = conn
            return conn
        finally:
            self._dialing = None
            mine.set()

    def close(self) -> Op[None]:
        """End the connection: calls under way are Lost."""
        yield from ()
        self._closed = True
        if self._conn is not None:
            self._conn.fail(Lost("the client was closed"))
