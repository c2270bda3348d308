"""What a program of sigmaOS does besides files: procs, leases, leaders, membership, endpoints.

Without input and output, as :mod:`sigmaos.tree`.
"""

from __future__ import annotations

import random
import socket
import time
from dataclasses import dataclass

from . import messages as p
from .codec import BOOL, STR, Int, Reader, pack
from .errors import Invalid, Lost, NotFound, Retryable, SigmaError, Timeout, Unavailable
from .handle import Handle, attach
from .session import Event, Op, Pause, Session, Start, Within, begin, close_all
from .tree import Tree
from .types import (
    DESCRIPTORS, PROC_IDS, PROC_INFOS, Descriptor, DirEntry, Endpoint, Fence, FileKind, Info,
    Principal, ProcInfo, Status, join_path, parse_path,
)

U64 = Int(8)
LEASE_OF_MEMBER = 10.0
LEASE_OF_LEADER = 5.0
REJOIN_PAUSE = 0.25


def nanoseconds(seconds: float) -> int:
    """Give a time as the protocol has it."""
    return int(seconds * 1e9)


class Lease:
    """A lease that is renewed until it is revoked or lost. ``id`` goes to ``put``."""

    def __init__(self, core: Core, id: int, ttl: float, asked: float) -> None:
        self.core, self.id, self.ttl = core, id, ttl
        self._good = asked  # the server counts its time from a later moment
        self._stop = Event()
        self._ended: Event | None = None
        #: Happens when the lease is not kept any more: it was revoked, it ended, or might have.
        self.lost, self.expired = Event(), False

    def keep(self) -> Op[None]:
        """Renew it in the background."""
        self._ended = yield Start(self._run())

    def _run(self) -> Op[None]:
        most = self.ttl * 0.9
        try:
            while not (yield Pause(self._pause(most), self._stop)):
                asked = time.monotonic()
                if asked - self._good >= most or self.core.session.broken is not None:
                    self.expired = True
                    return
                try:
                    yield Within(self.core.renew(self.id), self._good + most - asked, self._stop)
                    self._good = asked
                except NotFound:
                    self.expired = True
                    return
                except SigmaError:
                    pass  # again soon, while there is time
        finally:
            self.lost.set()

    def _pause(self, most: float) -> float:
        age = time.monotonic() - self._good
        if age < self.ttl / 3:
            return self.ttl / 3 - age
        return max(min(self.ttl / 12, most - age), 0)

    def revoke(self) -> Op[None]:
        """End it: its files are gone when this returns. One that has ended is fine."""
        self._stop.set()
        if self._ended is not None:
            yield Pause(None, self._ended)
        try:
            yield from self.core.lease_request(self.id, 0)
        except NotFound:
            pass


class Leadership:
    """Won by ``campaign``: ``fence`` is that of the epoch, ``lost`` happens when the program may lead no more."""

    def __init__(self, lease: Lease, fence: Fence) -> None:
        self.lease, self.fence = lease, fence

    @property
    def lost(self) -> Event:
        """Happens before another leads, unless the program stood still: then fences count."""
        return self.lease.lost

    def resign(self) -> Op[None]:
        """Let the next candidate lead."""
        return self.lease.revoke()


class Membership:
    """An endpoint that is published in a directory, and again when its lease was lost."""

    def __init__(self, core: Core, dir: str, endpoint: Endpoint) -> None:
        self.core, self.endpoint = core, endpoint
        self.dir = dir.rstrip("/")
        self.path = f"{self.dir}/{endpoint.proc}"
        self._lease, self._stop = 0, Event()
        self._ended: Event | None = None

    def enter(self) -> Op[None]:
        """Publish it under a new lease."""
        id = yield from self.core.lease_request(0, nanoseconds(LEASE_OF_MEMBER))
        try:
            try:
                yield from self._put(id)
            except NotFound:
                yield from self.core.mkdir(self.dir, parents=True, exist_ok=True)
                yield from self._put(id)
        except SigmaError:
            self.core.forget_lease(id)
            raise
        self._lease = id

    def _put(self, lease: int) -> Op[None]:
        yield from self.core.put(self.path, str(self.endpoint), kind=FileKind.ENDPOINT, lease=lease)

    def start(self) -> Op[None]:
        """Stay a member, in the background."""
        self._ended = yield Start(self._run())

    def _run(self) -> Op[None]:
        pause = LEASE_OF_MEMBER / 3
        while not (yield Pause(pause, self._stop)) and self.core.session.broken is None:
            try:
                yield Within(self._renew(), LEASE_OF_MEMBER, self._stop)
                pause = LEASE_OF_MEMBER / 3
            except SigmaError:
                pause = REJOIN_PAUSE

    def _renew(self) -> Op[None]:
        if self._lease:
            try:
                yield from self.core.renew(self._lease)
                return
            except NotFound:
                self._lease = 0
        yield from self.enter()

    def leave(self) -> Op[None]:
        """End the membership; the name is gone when this returns."""
        self._stop.set()
        if self._ended is not None:
            yield Pause(None, self._ended)
        try:
            if self._lease:
                yield from self.core.lease_request(self._lease, 0)
                return
        except NotFound:
            pass
        try:
            yield from self.core.remove(self.path)
        except NotFound:
            pass


@dataclass(frozen=True)
class Change:
    """What ``follow`` tells of a directory: ``what`` is created, changed (another file) or removed."""

    what: str
    name: str
    entry: DirEntry


class Follow:
    """Tells what changes in a directory; first of what is there."""

    def __init__(self, core: Core, path: str) -> None:
        self.core, self.path = core, path
        self._known: dict[str, DirEntry] = {}
        self._version = -1
        self._told: list[Change] = []

    def next(self) -> Op[Change]:
        """Wait for a change."""
        while not self._told:
            if self._version >= 0:
                yield from self.core.watch(self.path, self._version)
            version = (yield from self.core.stat(self.path)).version
            now = {e.name: e for e in (yield from self.core.scandir(self.path))}
            for name, e in self._known.items():
                if name not in now:
                    self._told.append(Change("removed", name, e))
            for name, e in now.items():
                if (was := self._known.get(name)) is None:
                    self._told.append(Change("created", name, e))
                elif was.id.path != e.id.path or (e.kind != FileKind.DIR and was.id.version != e.id.version):
                    self._told.append(Change("changed", name, e))
            self._known, self._version = now, version
        return self._told.pop(0)


class OpenFile:
    """An open file with a position. Reads and writes of it go in messages."""

    def __init__(self, core: Core, handle: Handle, path: str, flags: int) -> None:
        self.core, self.handle, self.path = core, handle, path
        self.readable = flags & 3 != 1
        self.writable = flags & 3 != 0
        self.appends = bool(flags & 0o2000)
        self.position, self.closed = 0, False

    def read(self, count: int) -> Op[bytes]:
        """Read up to count bytes at the position; none at the end of the file."""
        data = yield from self.handle.pread(count, self.position)
        self.position += len(data)
        return data

    def read_all(self) -> Op[bytes]:
        """Read to the end."""
        out = bytearray()
        while piece := (yield from self.read(p.DATA_MAX)):
            out += piece
        return bytes(out)

    def write(self, data: bytes) -> Op[int]:
        """Write all of data at the position."""
        n = yield from self.handle.pwrite(data, self.position)
        self.position += n
        return n

    def pread(self, count: int, offset: int) -> Op[bytes]:
        """Read up to count bytes at an offset."""
        return self.handle.pread(count, offset)

    def pwrite(self, data: bytes, offset: int) -> Op[int]:
        """Write all of data at an offset."""
        return self.handle.pwrite(data, offset)

    def seek(self, offset: int, whence: int = 0) -> Op[int]:
        """Move the position, as io does."""
        base = (0, self.position)[whence] if whence < 2 else (yield from self.handle.stat()).size
        if base + offset < 0:
            raise Invalid("a negative position", self.path)
        self.position = base + offset
        return self.position

    def truncate(self, size: int) -> Op[None]:
        """Set the size."""
        h = self.handle
        yield from h.ask(p.Tsetattr(h.fid, p.SET_SIZE, size=size), p.Rsetattr)

    def sync(self) -> Op[None]:
        """Make what was written durable."""
        yield from self.handle.ask(p.Tfsync(self.handle.fid), p.Rfsync)

    def close(self) -> Op[None]:
        """Give it up; of an object of /s3 that publishes what was written, and fails if it cannot."""
        if self.closed:
            return
        self.closed = True
        h = self.handle
        if self.writable:
            yield from h.ask(p.Tclunk(h.fid), p.Rclunk)
        else:
            h.close()


class Core(Tree):
    """A program's connection to a realm. Every method is a generator of effects."""

    info: Info

    # Leases.

    def lease_request(self, id: int, ttl: int) -> Op[int]:
        """Grant (id 0), renew, or revoke (ttl 0) a lease."""
        return (yield from self.root.ask(p.Tlease(self.root.fid, id, ttl), p.Rlease)).id

    def renew(self, id: int) -> Op[None]:
        """Give a lease its time again."""
        yield from self.lease_request(id, 1)

    def forget_lease(self, id: int) -> None:
        """Revoke a lease without waiting."""
        self.session.post(p.Tlease(self.root.fid, id, 0), self.root.epoch)

    def lease(self, ttl: float = 10.0) -> Op[Lease]:
        """Make a lease of so many seconds, which is renewed in the background."""
        asked = time.monotonic()
        lease = Lease(self, (yield from self.lease_request(0, nanoseconds(ttl))), ttl, asked)
        yield from lease.keep()
        return lease

    # Leaders.

    def campaign(self, path: str, data: bytes | str = b"", *, ttl: float = LEASE_OF_LEADER,
                 kind: int = FileKind.FILE, fenced: tuple[str, ...] = ()) -> Op[Leadership]:
        """Wait until the program leads: the ephemeral file at path is its own.

        The epoch is advanced in path + ".epoch". What is asked of the directories ``fenced`` carries it.
        """
        raw = data.encode() if isinstance(data, str) else data
        while True:
            try:
                lease = yield from self.lease(ttl)
            except (Lost, Retryable) as e:
                yield from self._again(e, ttl)
                continue
            try:
                fence: Fence = yield Within(self._stand(path, raw, kind, fenced, lease), None, lease.lost)
                if not lease.lost.happened:
                    return Leadership(lease, fence)
            except SigmaError as e:
                cause: SigmaError = e
                again = lease.expired or (yield from self._lease_ended(lease, e))
                yield from self._drop(lease)
                if not again and not isinstance(e, (Lost, Retryable)):
                    cause.path = path
                    raise
            except BaseException:
                lease._stop.set()
                self.forget_lease(lease.id)
                raise
            else:
                cause = Lost("the lease ended")
                yield from self._drop(lease)
            yield from self._again(cause, ttl)

    def _again(self, cause: SigmaError, ttl: float) -> Op[None]:
        if self.session.broken is not None:
            raise cause
        yield Pause(ttl / 20)

    def _drop(self, lease: Lease) -> Op[None]:
        try:
            yield from lease.revoke()
        except SigmaError:
            pass

    def _lease_ended(self, lease: Lease, e: SigmaError) -> Op[bool]:
        if isinstance(e, NotFound):
            try:
                yield from self.renew(lease.id)
            except NotFound:
                return True
            except SigmaError:
                pass
        return False

    def _stand(self, path: str, data: bytes, kind: int, fenced: tuple[str, ...], lease: Lease) -> Op[Fence]:
        flags = p.PUT_MUST_MAKE | p.PUT_WAIT
        yield from self._put(path, data, p.Tput(0, [], kind, flags, 0o644, 0, lease.id, data), False)
        fence = yield from self.advance_epoch(path + ".epoch")
        for dir in fenced:
            yield from self.fence(fence, dir)
        return fence

    # Membership and endpoints.

    def join(self, dir: str, endpoint: Endpoint) -> Op[Membership]:
        """Publish an endpoint under its proc's id in a directory, which is made if it is missing."""
        m = Membership(self, dir, endpoint)
        yield from m.enter()
        yield from m.start()
        return m

    def publish(self, path: str, endpoint: Endpoint, lease: int = 0) -> Op[None]:
        """Write an endpoint into the file at path."""
        yield from self.put(path, str(endpoint), kind=FileKind.ENDPOINT, lease=lease)

    def members(self, dir: str) -> Op[list[str]]:
        """List the names of a service's members."""
        entries = yield from self.scandir(dir)
        return [e.name for e in entries if e.kind == FileKind.ENDPOINT and not e.name.startswith(".")]

    def dial_path(self, path: str) -> Op[socket.socket]:
        """Connect to the endpoint at path or, if that is a directory, to one of its members that answers."""
        st = yield from self.lstat(path)
        if not st.is_dir and st.kind != FileKind.SYMLINK:
            return (yield from self._dial_at(path))
        try:
            names = yield from self.members(path)
        except SigmaError:
            if st.is_dir:
                raise
            return (yield from self._dial_at((yield from self._real_link(path))))
        random.shuffle(names)
        cause: SigmaError = Unavailable("the service has no member", path)
        for name in names:
            try:
                return (yield from self._dial_at(f"{path.rstrip('/')}/{name}"))
            except (NotFound, Unavailable, Timeout) as e:
                cause = Unavailable("no member of the service can be reached", path, e.hint)
        raise cause

    def _real_link(self, path: str) -> Op[str]:
        target = yield from self.readlink(path)
        return target if target.startswith("/") else join_path([*parse_path(path)[:-1], *target.split("/")])

    def _dial_at(self, path: str) -> Op[socket.socket]:
        text = yield from self.readlink(path)
        return (yield from self.dial(Endpoint.parse(text)))

    # Files and directories.

    def open_file(self, path: str, mode: str = "r", perm: int = 0o644) -> Op[OpenFile]:
        """Open a file; mode is r, w, a or x, with + for both ways."""
        kind = mode.replace("b", "").replace("t", "")
        flags = {"r": 0, "w": 0o1001, "a": 0o2001, "x": 0o201, "r+": 2, "w+": 0o1002, "a+": 0o2002, "x+": 0o202}
        if kind not in flags:
            raise Invalid(f"there is no mode {mode!r}")
        f = flags[kind]
        h = yield from self.open_handle(path, f, perm, kind[0] != "r")
        file = OpenFile(self, h, path, f)
        if file.appends:
            yield from file.seek(0, 2)
        return file

    def follow(self, path: str) -> Op[Follow]:
        """Follow a directory: what is there, then what changes. Contents are told of where versions come along."""
        yield from ()
        return Follow(self, path)

    # Procs.

    def spawn(self, *descriptors: Descriptor) -> Op[list[str]]:
        """Start procs; gives their ids."""
        reply, fds = yield from self.system("procs", "spawn", pack((DESCRIPTORS, list(descriptors))))
        close_all(fds)
        r = Reader(reply)
        ids = PROC_IDS.take(r)
        r.finish()
        return ids

    def _wait(self, file: str, method: str, payload: bytes = b"") -> Op[bytes]:
        """Ask for what does nothing but wait: again with the next sigmad."""
        again = False
        while True:
            epoch = self.session.epoch
            try:
                reply, fds = yield from self.system(file, method, payload)
                close_all(fds)
                return reply
            except Lost:
                if self.session.epoch == epoch or self.session.broken is not None:
                    raise
            except NotFound as e:
                if again:
                    hint = "whether it ran is not known: start it again if that does no harm"
                    raise Lost("sigmad was started again, and does not know the proc any more", "", hint) from e
                raise
            again = True

    def _do(self, file: str, method: str, payload: bytes = b"") -> Op[bytes]:
        reply, fds = yield from self.system(file, method, payload)
        close_all(fds)
        return reply

    def wait_start(self, id: str) -> Op[None]:
        """Wait until a proc has started."""
        yield from self._wait("procs", "wait-start", pack((STR, id)))

    def wait_exit(self, id: str) -> Op[Status]:
        """Wait until a proc has ended; tells how."""
        return Status.unpack((yield from self._wait("procs", "wait-exit", pack((STR, id)))))

    def evict(self, id: str, grace: float = 10.0) -> Op[None]:
        """Ask a proc to go, and kill it after so many seconds."""
        yield from self._do("procs", "evict", pack((STR, id), (U64, nanoseconds(grace))))

    def kill(self, id: str) -> Op[None]:
        """Kill a proc."""
        yield from self._do("procs", "kill", pack((STR, id)))

    def freeze(self, id: str) -> Op[None]:
        """Hold a proc still."""
        yield from self._do("procs", "freeze", pack((STR, id)))

    def thaw(self, id: str) -> Op[None]:
        """Let a frozen proc go on."""
        yield from self._do("procs", "thaw", pack((STR, id)))

    def procs(self, all: bool = False) -> Op[list[ProcInfo]]:
        """List the realm's procs, oldest first; with ``all`` those that have ended, too."""
        out: list[ProcInfo] = []
        at, after, more = "", 0, True
        while more:
            r = Reader((yield from self._do("procs", "list", pack((BOOL, all), (STR, at), (U64, after)))))
            page = PROC_INFOS.take(r)
            more, at, after = BOOL.take(r), STR.take(r), U64.take(r)
            r.finish()
            out += page
            more = more and bool(page)
        return sorted(out, key=lambda i: i.times.spawned)

    def logs(self, id: str, stream: str = "stdout") -> Op[bytes]:
        """Give what a proc has printed, to ``stdout`` or ``stderr``, as far as it is kept."""
        return self.get(f"/proc/{id}/{stream}")

    # Itself.

    def started(self) -> Op[None]:
        """Tell that this proc has started, if its descriptor says that it tells so."""
        yield from self._do("self", "started")

    def exited(self, status: Status) -> Op[None]:
        """Tell how this proc ends."""
        yield from self._do("self", "exited", status.pack())

    def wait_evict(self) -> Op[None]:
        """Wait until this proc is asked to go."""
        yield from self._wait("self", "wait-evict")


def start(session: Session, realm: str) -> Op[Core]:
    """Begin a session and make the client of it."""
    yield from begin(session)
    while True:
        epoch = session.epoch
        try:
            core = Core(session, (yield from attach(session, realm)), Principal())
            reply = yield from core._do("self", "info")
        except Lost:
            if session.broken is not None or session.epoch == epoch:
                raise
            continue
        core.info = Info.unpack(reply)
        core.me = core.info.principal
        return core

