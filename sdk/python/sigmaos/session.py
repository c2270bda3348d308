"""Sessions of sigmaP without input and output: requests in, records out; records in, replies out.

What waits is written as generators that yield *effects*; a shell (``sigmaos.blocking``,
``sigmaos.aio``) carries them out and sends back what came of them.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from . import messages as p
from .errors import Canceled, Invalid, Lost, Retryable, SigmaError, Unsupported

T = TypeVar("T")
M = TypeVar("M", bound=p.Message)
#: A step of work that yields effects and gives a T.
Op = Generator["Effect", Any, T]

ANY_EPOCH = -1
REDIAL_PAUSE = 0.05
AWAY_MOST = 10.0  # how long a sigmad may be away before the session ends
GONE_MOST = 1.0  # how long its socket may be missing: one that is stopped in good order removes it


class Effect:
    """What a generator asks its shell for."""


class Event:
    """Something that happens once, and that others may wait for. Safe for threads."""

    def __init__(self) -> None:
        self._lock, self._happened = threading.Lock(), False
        self._told: list[Callable[[], None]] = []

    @property
    def happened(self) -> bool:
        """Whether it has."""
        return self._happened

    def set(self) -> None:
        """Let it happen."""
        with self._lock:
            self._happened = True
            told, self._told = self._told, []
        for f in told:
            f()

    def tell(self, f: Callable[[], None]) -> None:
        """Have f called when it happens, or now."""
        with self._lock:
            if not self._happened:
                self._told.append(f)
                return
        f()

    def untell(self, f: Callable[[], None]) -> None:
        """Take back tell."""
        with self._lock:
            if f in self._told:
                self._told.remove(f)


class Pause(Effect):
    """Wait so many seconds, or until an event, if one is given: tells whether it happened."""

    def __init__(self, seconds: float | None, event: Event | None = None) -> None:
        self.seconds, self.event = seconds, event


class Within(Effect):
    """Run a generator; Timeout after so many seconds, Canceled when the event happens."""

    def __init__(self, gen: Op[Any], seconds: float | None = None, event: Event | None = None) -> None:
        self.gen, self.seconds, self.event = gen, seconds, event


class Start(Effect):
    """Run a generator beside; gives an Event that happens when it has ended."""

    def __init__(self, gen: Op[None]) -> None:
        self.gen = gen


class Connect(Effect):
    """Make a socket to sigmad, with what the client was given for that; gives it."""


class Link(Effect):
    """Have a session use a socket."""

    def __init__(self, session: Session, sock: socket.socket) -> None:
        self.session, self.sock = session, sock


class Request(Effect):
    """A message and its reply: gives the reply and file descriptors, or fails with its error."""

    def __init__(self, session: Session, message: p.Message, epoch: int = ANY_EPOCH, urgent: bool = False) -> None:
        self.session, self.message, self.epoch, self.urgent = session, message, epoch, urgent
        self.tag = -1
        self.flushed = self.answered = self.abandoned = False
        self.reply: p.Message | None = None
        self.fds: list[int] = []
        self.error: SigmaError | None = None
        self.done, self._lock = Event(), threading.Lock()
        #: Called if a reply comes that nobody waits for any more.
        self.undo: Callable[[], None] | None = None

    def finish(self, reply: p.Message | None, fds: list[int], error: SigmaError | None) -> None:
        """End it, once."""
        with self._lock:
            late, self.answered = self.answered, True
            if not late:
                self.reply, self.error = reply, error
                self.fds = [] if self.abandoned else fds
        if late or self.abandoned:
            close_all(fds)
        if not late:
            if self.abandoned and reply is not None and self.undo:
                self.undo()
            self.done.set()

    def abandon(self) -> None:
        """Want no reply any more, also if it is there."""
        with self._lock:
            self.abandoned = True
            if not self.answered:
                return
            fds, self.fds = self.fds, []
        close_all(fds)
        if self.reply is not None and self.undo:
            self.undo()

    def result(self) -> tuple[p.Message, list[int]]:
        """Give what came of it."""
        if self.error is not None:
            raise self.error
        assert self.reply is not None
        return self.reply, self.fds


def close_all(fds: list[int]) -> None:
    """Close file descriptors that nobody wants."""
    for fd in fds:
        os.close(fd)


def inner(m: p.Message) -> p.Message:
    """Give the request without what goes with it."""
    return m.request if isinstance(m, p.Twith) else m


class Session:
    """The asking side of one session. Methods may be called by any thread.

    ``transmit`` is called, without locks held, when ``outbox`` has records; ``resume`` when the
    session has to begin anew with another server; ``hang_up`` when its connection is to be closed.
    """

    def __init__(self, resettable: bool = False, lasting: bool = False) -> None:
        self.resettable, self.lasting = resettable, lasting
        self.lock = threading.RLock()
        self.outbox: deque[bytes] = deque()
        self.transmit: Callable[[], None] = lambda: None
        self.resume: Callable[[], object] = lambda: None
        self.hang_up: Callable[[], None] = lambda: None
        self.epoch = 0
        self.nonce: int | None = None
        self.version, self.usable, self.begun, self.beginning = "", False, False, False
        self.broken: SigmaError | None = None
        self.ended = Event()
        self.attached: dict[int, str] = {}
        self._pending: dict[int, Request] = {}
        self._waiting: deque[Request] = deque()
        self._tag = self._fid = 0
        self._free_fids: list[int] = []

    # Requests.

    def submit(self, r: Request) -> None:
        """Put a request in line; it is finished when its reply comes."""
        error: SigmaError | None = None
        with self.lock:
            if self.broken is not None:
                error = Lost(self.broken.message, "", self.broken.hint)
            elif r.epoch not in (ANY_EPOCH, self.epoch):
                error = Lost("sigmad died, and what was open with it", "", "open it again")
            elif not self.usable and not r.urgent:
                self._waiting.append(r)
                return
            else:
                try:
                    self._send(r)
                except SigmaError as e:
                    error = e
        if error is not None:
            error.unsent = True
            r.finish(None, [], error)
        else:
            self.transmit()

    def _send(self, r: Request) -> None:
        tag = p.NO_TAG
        if not isinstance(r.message, p.Tversion):
            tag = self._tag
            while tag in self._pending:
                tag = (tag + 1) % p.NO_TAG
            self._tag = (tag + 1) % p.NO_TAG
        self.outbox.append(p.encode(tag, r.message))
        r.tag = tag
        self._pending[tag] = r

    def post(self, m: p.Message, epoch: int) -> None:
        """Make a request whose reply nobody waits for."""
        r = Request(self, m, epoch)
        r.abandoned = True
        self.submit(r)

    def cancel(self, r: Request) -> None:
        """Take a request back. It is finished by its reply after all, or as canceled."""
        error: SigmaError | None = None
        with self.lock:
            if r.answered or r.flushed:
                return
            if r in self._waiting:
                self._waiting.remove(r)
                error = Canceled()
                error.unsent = True
            elif self._pending.get(r.tag) is r and not r.urgent:
                r.flushed = True
                self._send(Request(self, p.Tflush(r.tag), ANY_EPOCH))
        if error is not None:
            r.finish(None, [], error)
        else:
            self.transmit()

    def new_fid(self) -> int:
        """Give a number for a handle."""
        with self.lock:
            if self._free_fids:
                return self._free_fids.pop()
            self._fid += 1
            return self._fid

    def free_fid(self, fid: int) -> None:
        """Give back a number that no handle has."""
        with self.lock:
            self._free_fids.append(fid)

    def clunk(self, fid: int, epoch: int) -> None:
        """Give up a handle."""
        with self.lock:
            if self.attached.pop(fid, None) is None and epoch not in (ANY_EPOCH, self.epoch):
                return
        self.post(p.Tclunk(fid), epoch)

    # What comes.

    def received(self, record: bytes, fds: list[int]) -> None:
        """Take a record. An exception says that the server breaks the rules: end the connection."""
        if not record:
            raise Lost("the server ended the session")
        rest = memoryview(record)
        again = False
        finished: list[tuple[Request, p.Message, list[int]]] = []
        try:
            while rest:
                one, rest = p.cut(rest)
                tag, m = p.decode(one)
                if isinstance(m, p.Rreset) and tag == p.NO_TAG and self.resettable:
                    again = self._forget(m.nonce) or again
                else:
                    with self.lock:
                        done = self._reply(tag, m)
                    if done is not None:
                        finished.append((done[0], done[1], fds))
                        fds = []
        finally:
            close_all(fds)
            for r, reply, passed in finished:
                if (failure := p.error_of(reply)) is not None:
                    close_all(passed)
                r.finish(None if failure else reply, [] if failure else passed, failure)
        if again:
            self.resume()

    def _reply(self, tag: int, m: p.Message) -> tuple[Request, p.Message] | None:
        r = self._pending.get(tag)
        if r is None or (r.flushed and r.answered):
            raise Invalid("the server answered a request that was not made")
        asked = inner(r.message)
        allowed = (asked.TYPE + 1, p.Rfail.TYPE)
        stops = isinstance(m, p.Rstop) and isinstance(asked, (p.Tget, p.Tput))
        if m.TYPE not in allowed and not stops:
            raise Invalid(f"the server answered with an unexpected {type(m).__name__}")
        if not r.flushed:
            del self._pending[tag]
        if isinstance(asked, p.Tclunk):
            self._free_fids.append(asked.fid)
        if not isinstance(asked, p.Tflush):
            return r, m
        flushed = self._pending.pop(asked.old_tag, None)
        if flushed is not None and not flushed.answered:
            return flushed, p.Rfail(Canceled.KIND, "", "", "")
        return None

    def _forget(self, nonce: int | None) -> bool:
        """End what was under way with a server that is gone; tells whether to begin anew."""
        with self.lock:
            self.nonce = nonce
            self.epoch += 1
            self.usable = False
            pending, self._pending = self._pending, {}
            self._free_fids.clear()
            self.outbox.clear()
            stale = [r for r in self._waiting if r.epoch not in (ANY_EPOCH, self.epoch)]
            self._waiting = deque(r for r in self._waiting if r.epoch in (ANY_EPOCH, self.epoch))
            again = self.begun and not self.beginning
        text = "sigmad died; whether the request took effect is not known"
        for r in [*pending.values(), *stale]:
            r.finish(None, [], Lost(text, "", "open files again"))
        return again

    def pull(self) -> bytes:
        """Take a record to send."""
        with self.lock:
            return self.outbox.popleft() if self.outbox else b""

    def back(self, record: bytes) -> None:
        """Put back what could not be sent."""
        with self.lock:
            self.outbox.appendleft(record)

    def lost(self, cause: SigmaError | None = None) -> None:
        """Note that the connection has ended."""
        if self.lasting and self.begun and self.broken is None and not isinstance(cause, Invalid):
            if self._forget(None):
                self.resume()
            return
        self.fail(cause or Lost("the connection to the server is lost"))

    def fail(self, cause: SigmaError) -> None:
        """End the session for good."""
        with self.lock:
            if self.broken is not None:
                return
            self.broken = Lost(cause.message or str(cause), "", cause.hint)
            self.epoch += 1
            requests = [*self._pending.values(), *self._waiting]
            self._pending.clear()
            self._waiting.clear()
        for r in requests:
            r.finish(None, [], Lost(self.broken.message, "", self.broken.hint))
        self.ended.set()
        self.hang_up()

    def ready(self) -> None:
        """Let requests through: the session has begun."""
        failed: list[tuple[Request, SigmaError]] = []
        with self.lock:
            self.usable = self.begun = True
            waiting, self._waiting = self._waiting, deque()
            for r in waiting:
                try:
                    self._send(r)
                except SigmaError as e:
                    failed.append((r, e))
        for r, error in failed:
            r.finish(None, [], error)
        self.transmit()


def ask(s: Session, m: p.Message, want: type[M], epoch: int = ANY_EPOCH, urgent: bool = False) -> Op[M]:
    """Make a round trip whose reply carries no file descriptors."""
    reply, fds = yield Request(s, m, epoch, urgent)
    close_all(fds)
    if not isinstance(reply, want):
        raise Invalid(f"the server answered with an unexpected {type(reply).__name__}")
    return reply


def begin(s: Session) -> Op[None]:
    """Agree on a version and attach roots again; once more if the server is replaced meanwhile."""
    s.beginning = True
    try:
        while True:
            epoch = s.epoch
            try:
                yield from _negotiate(s)
                for fid, name in list(s.attached.items()):
                    yield from ask(s, p.Tattach(fid, aname=name), p.Rattach, urgent=True)
            except Lost:
                if s.broken is not None or s.epoch == epoch or s.nonce is None:
                    raise
                continue
            with s.lock:
                if s.epoch == epoch:
                    s.beginning = False
                    s.ready()
                    return
    finally:
        s.beginning = False


def _negotiate(s: Session) -> Op[None]:
    if s.nonce is not None:
        agreed = s.version or p.SIGMA1
        text = f"{agreed}.reset.{s.nonce:016x}"
        r = yield from ask(s, p.Tversion(p.MESSAGE_MAX, text), p.Rversion, urgent=True)
        if r.version != agreed:
            raise Invalid("the server does not let the session go on")
        s.version = agreed
        return
    for version in (s.version,) if s.version else (p.SIGMA2, p.SIGMA1):
        r = yield from ask(s, p.Tversion(p.MESSAGE_MAX, version), p.Rversion, urgent=True)
        if r.msize >= p.MESSAGE_MAX and r.version in (version, p.SIGMA1):
            s.version = r.version
            return
    raise Unsupported(f"the server does not speak {p.SIGMA1}")


def _redial(s: Session) -> Op[socket.socket]:
    """Connect to the next sigmad, which is started within some seconds."""
    began = time.monotonic()
    while True:
        yield Pause(REDIAL_PAUSE)
        try:
            sock: socket.socket = yield Connect()
            return sock
        except Retryable as e:
            missing = isinstance(e.__cause__, FileNotFoundError)
            if s.broken or time.monotonic() - began > (GONE_MOST if missing else AWAY_MOST):
                raise


def reconnect(s: Session) -> Op[None]:
    """Begin anew by another connection; ends the session if there is none."""
    try:
        while s.broken is None:
            sock = yield from _redial(s)
            epoch = s.epoch
            yield Link(s, sock)
            try:
                yield from begin(s)
                return
            except Lost:
                if s.broken is not None:
                    return
                if s.epoch == epoch:
                    s._forget(None)
    except SigmaError as e:
        s.fail(e)
