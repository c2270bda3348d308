"""A realm's tree by paths, without input and output: links, endpoints, unions, fences, changes made once."""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar

from . import messages as p
from .codec import BOOL, pack
from .errors import (
    Busy, DirectoryNotEmpty, Exists, Invalid, Lost, NotFound, SigmaError, Stale, TooBig, TooManyLinks, Unavailable,
    Unsupported, VersionMismatch,
)
from .handle import Handle, Stopped, attach, one_socket, stoppable
from .session import Link, Op, Request, Session, Within, begin
from .types import ENDPOINT, DirEntry, Endpoint, Fence, FileID, FileKind, Once, Principal, Stat, join_path, parse_path

T = TypeVar("T")
M = TypeVar("M", bound=p.Message)

HOPS_MOST = 40
PROBE_MOST = 1.0  # how long a member of a union may take to answer, in seconds
MEMBERS_MOST = 4096
GET_MOST = 64 << 20
TRIES = 4  # of one change whose replies are lost
PROVIDED = ("ux", "proc", "sys", "s3", "db")
ANY, LOCAL = "~any", "~local"


@dataclass
class _Cursor:
    """A place on the way along a path: names remain to be walked from file."""

    file: Handle
    names: list[str]
    path: list[str]
    epoch: int
    mount: str = ""
    own: bool = False
    hops: int = 0
    before: list[str] | None = None
    member: str = ""
    passed: set[str] = field(default_factory=set)
    reason: SigmaError | None = None
    redialled: bool = False

    def move(self, file: Handle, own: bool, names: list[str]) -> None:
        if self.own:
            self.file.close()
        self.file, self.own, self.names = file, own, names


@dataclass
class _Change:
    """One change, with the number of the request that is under way."""

    client: int
    seq: int = 0
    again: bool = False

    def do(self, numbered: bool, send: Callable[[Once | None], Op[T]]) -> Op[T]:
        if not numbered:
            return (yield from send(None))
        if not self.again:
            self.seq += 1
        once = Once(self.client, self.seq, self.seq - 1, self.again)
        self.again = True
        try:
            result = yield from send(once)
        except SigmaError as e:
            self.again = isinstance(e, Lost)
            raise
        self.again = False
        return result


class Tree:
    """Files by paths. Every method is a generator of effects; shells give them a face."""

    def __init__(self, session: Session, root: Handle, me: Principal) -> None:
        self.session, self.root, self.me = session, root, me
        self._fences: list[tuple[list[str], Fence]] = []
        self._mounts: dict[str, Handle] = {}
        self._provided: dict[str, str] = {}
        self._system: dict[str, Handle] = {}
        self._lanes: list[_Change] = []

    # Walking.

    def _at(self, path: str, op: Callable[[Handle, list[str]], Op[T | Stopped]], again: bool = True,
            fenced: bool = True) -> Op[tuple[T, _Cursor]]:
        """Run op at the last server of the path, with the names that remain."""
        names = parse_path(path)
        c = _Cursor(self.root, names, names, self.session.epoch)
        self._at_root(c)
        try:
            while True:
                try:
                    stop = yield from self._step(c, op, fenced)
                    if not isinstance(stop, Stopped):
                        return stop, c
                    yield from self._follow(c, stop)
                except SigmaError as e:
                    error: SigmaError | None = e
                    if isinstance(e, (NotFound, Invalid)):
                        error = yield from self._choose(c, e)
                    if error is not None and not self._pass_over(c, error, again):
                        _about(error, path)
                        if c.reason is not None:
                            raise _about(c.reason, path) from error
                        if error is not e:
                            raise error from e
                        raise
                c.hops += 1
                if c.hops > HOPS_MOST:
                    raise TooManyLinks("", path, "a link on the path leads back to itself, or there are more than 40")
        finally:
            c.move(self.root, False, [])

    def _step(self, c: _Cursor, op: Callable[[Handle, list[str]], Op[T | Stopped]], fenced: bool) -> Op[T | Stopped]:
        while len(c.names) > p.WALK_MAX:
            got = yield from self._guard(c.file, c.path, fenced).walk_to(c.names[: p.WALK_MAX], True)
            if isinstance(got, Stopped):
                return got
            c.move(got, True, c.names[p.WALK_MAX :])
        return (yield from op(self._guard(c.file, c.path, fenced), c.names))

    def _at_root(self, c: _Cursor) -> None:
        c.epoch = self.session.epoch
        c.move(self.root, False, c.path)
        c.mount = ""
        if len(c.path) > 1 and c.path[0] in PROVIDED:
            text = self._provided.get(c.path[0], "")
            root = self._mounts.get(text)
            if root is not None and root.session.broken is None:
                c.move(root, False, c.path[1:])
                c.mount = text

    def _follow(self, c: _Cursor, stop: Stopped) -> Op[None]:
        if stop.walked > len(c.names) or not 0 < stop.walked <= len(c.path):
            raise Invalid("the server stopped where there is nothing")
        rest = c.names[stop.walked :]
        at = len(c.path) - len(rest)
        if stop.kind == FileKind.ENDPOINT:
            root = yield from self._mounted(stop.target)
            if not c.mount and at == 1 and c.path[0] in PROVIDED:
                self._provided[c.path[0]] = stop.target
            c.move(root, False, rest)
            c.mount = stop.target
            return
        target = stop.target
        if not target.startswith("/"):
            target = join_path(c.path[: at - 1]).rstrip("/") + "/" + target
        c.path = parse_path(target) + rest
        if len(c.path) > 4096:
            raise TooBig("links make the path longer than 4096 names")
        self._at_root(c)

    def _mounted(self, text: str) -> Op[Handle]:
        """Give the root behind an endpoint."""
        e = Endpoint.parse(text)
        if e.form != "tree":
            raise Unsupported("cannot walk through this endpoint")
        known = self._mounts.get(text)
        if known is not None and known.session.broken is None:
            return known
        self._mounts = {k: h for k, h in self._mounts.items() if h.session.broken is None}
        sock = yield from self.dial(e)
        s = Session()
        yield Link(s, sock)
        try:
            yield from begin(s)
            name = self.me.realm if self.me.system and e.realm == "system" else ""
            root = yield from attach(s, name)
        except BaseException as err:
            s.fail(Lost(str(err)))
            raise
        other = self._mounts.setdefault(text, root)
        if other is not root:
            s.fail(Lost("another thread dialled too"))
        return other

    def _choose(self, c: _Cursor, cause: SigmaError) -> Op[SigmaError | None]:
        """Replace the first ~local or ~any that the server did not resolve by a member."""
        i = next((i for i, n in enumerate(c.names) if n in (LOCAL, ANY)), -1)
        if i < 0:
            return cause
        try:
            dir = yield from self._guard(c.file, c.path, True).walk_to(c.names[:i], True)
        except SigmaError:
            return cause
        if isinstance(dir, Stopped):
            return cause
        where = len(c.path) - len(c.names) + i
        try:
            entries = yield from self._listing(dir)
            for e in entries[:MEMBERS_MOST]:
                member = join_path([*c.path[:where], e.name])
                if member in c.passed or not (yield from self._matches(dir, e, c.names[i])):
                    continue
                c.before, c.member = c.path, member
                c.path = [*c.path[:where], e.name, *c.path[where + 1 :]]
                c.names = c.path[len(c.path) - len(c.names) :]
                return None
        except SigmaError as e2:
            return e2
        finally:
            dir.close()
        return cause

    def _listing(self, dir: Handle) -> Op[list[DirEntry]]:
        d, _ = yield from dir.walk([])
        assert d is not None
        try:
            return (yield from d.list())
        finally:
            d.close()

    def _matches(self, dir: Handle, e: DirEntry, want: str) -> Op[bool]:
        if want == LOCAL and self.me.machine and e.name == self.me.machine:
            return True
        if e.kind != FileKind.ENDPOINT:
            return want == ANY and e.kind == FileKind.DIR
        try:
            good: bool = yield Within(self._probe(dir, e.name, want), PROBE_MOST)
            return good
        except SigmaError:
            return False

    def _probe(self, dir: Handle, name: str, want: str) -> Op[bool]:
        f, ids = yield from dir.walk([name])
        if f is None:
            return False
        try:
            if want == ANY and ids[0].kind == FileKind.DIR:
                return True
            text = (yield from f.ask(p.Treadlink(f.fid), p.Rreadlink)).target
        finally:
            f.close()
        e = Endpoint.parse(text)
        if want == LOCAL and e.machine != self.me.machine:
            return False
        if e.form == "tree":
            yield from self._mounted(text)
        return True

    def _pass_over(self, c: _Cursor, error: SigmaError, again: bool) -> bool:
        """Prepare for the next member, or for the server that took another's place."""
        lost = isinstance(error, Lost) and (again or error.unsent)
        if not lost and not isinstance(error, (NotFound, Unavailable)):
            return False
        if c.before is None:
            if not lost or self.session.broken is not None:
                return False
            if c.epoch == self.session.epoch and (not c.mount or c.redialled):
                return False
            c.redialled = bool(c.mount)
            self._at_root(c)
            return True
        c.reason = c.reason or error
        c.passed.add(c.member)
        c.path, c.before = c.before, None
        self._at_root(c)
        return True

    def _guard(self, file: Handle, path: list[str], fenced: bool) -> Handle:
        """Give file the fence of the innermost fenced directory of path."""
        if not (fits := [(d, f) for d, f in self._fences if path[: len(d)] == d] if fenced else []):
            return file
        return replace(file, fence=max(fits, key=lambda x: len(x[0]))[1], aside=True)

    def _walk(self, path: str, follow: bool = True, fenced: bool = True) -> Op[tuple[Handle, _Cursor]]:
        return self._at(path, lambda f, names: f.walk_to(names, follow), True, fenced)

    def _parent(self, path: str) -> Op[tuple[Handle, str, _Cursor]]:
        if not (names := parse_path(path)):
            raise Invalid("the root cannot be made, moved or removed", path)
        dir, c = yield from self._walk(join_path(names[:-1]))
        fence = self._guard(dir, [*c.path, names[-1]], True).fence
        return replace(dir, fence=fence), names[-1], c

    # Changes.

    def _changing(self, op: Callable[[_Change], Op[T]]) -> Op[T]:
        """Run op, which asks for a change, again while the reply of the root's server is lost."""
        with self.session.lock:
            n = self._lanes.pop() if self._lanes else _Change(secrets.randbits(63) or 1)
        n.again = False
        try:
            for rest in range(TRIES - 1, -1, -1):
                try:
                    return (yield from op(n))
                except Lost:
                    if not n.again or not rest or self.session.broken is not None:
                        raise
            raise AssertionError
        finally:
            with self.session.lock:
                self._lanes.append(n)

    def _in_parent(self, path: str, want: type[M], make: Callable[[Handle, str], p.Message]) -> Op[None]:
        def change(n: _Change) -> Op[None]:
            dir, name, c = yield from self._parent(path)
            with using(path, dir):
                yield from n.do(not c.mount, lambda once: dir.ask(make(dir, name), want, once))

        return self._changing(change)

    # What programs use.

    def get_versioned(self, path: str, sync: bool = False) -> Op[tuple[bytes, FileID]]:
        """Read a whole file, and tell which file and version it was."""
        return self._get(path, sync, True)

    def _get(self, path: str, sync: bool, fenced: bool) -> Op[tuple[bytes, FileID]]:
        def op(f: Handle, names: list[str]) -> Op[p.Rget | Stopped]:
            m = p.carrying(p.Tget(f.fid, names, 0, p.DATA_MAX), None, f.fence, sync)
            return (yield from stoppable(f, m, p.Rget))

        r, _ = yield from self._at(path, op, True, fenced)
        if r.size <= len(r.data):
            return r.data, r.id
        if r.size > GET_MOST:
            raise TooBig("file is too big to get at once", path, "open it and read it in pieces")
        return (yield from self._get_large(path))

    def _get_large(self, path: str) -> Op[tuple[bytes, FileID]]:
        f, _ = yield from self._walk(path)
        with using(path, f):
            yield from f.open(0)
            before = yield from f.stat()
            for _ in range(5):
                data = bytearray()
                while piece := (yield from f.pread(p.DATA_MAX, len(data))):
                    data += piece
                    if len(data) > GET_MOST:
                        raise TooBig("file is too big to get at once")
                after = yield from f.stat()
                if after.id.version == before.id.version:
                    return bytes(data), after.id
                before = after
            raise Busy("the file changes while it is read")

    def get(self, path: str, sync: bool = False) -> Op[bytes]:
        """Read a whole file. With ``sync`` it is what the leading name service has, not what is remembered."""
        return (yield from self.get_versioned(path, sync))[0]

    def put(self, path: str, data: bytes | str = b"", *, kind: int = FileKind.FILE, perm: int = 0o644,
            must_make: bool = False, must_exist: bool = False, append: bool = False, wait: bool = False,
            if_version: int = 0, lease: int = 0) -> Op[FileID]:
        """Make or replace a file in one step, once, whatever dies meanwhile.

        ``must_make``: Exists if it is there; with ``wait``, wait until it is not. ``must_exist``:
        NotFound if it is not. ``if_version``: VersionMismatch if it is at another. ``lease``: the
        file goes when that lease ends.
        """
        raw = data.encode() if isinstance(data, str) else bytes(data)
        flags = p.PUT_MUST_MAKE * must_make | p.PUT_MUST_EXIST * must_exist | p.PUT_APPEND * append | p.PUT_WAIT * wait
        if len(raw) + len(path) > p.DATA_MAX:
            if kind or flags or if_version or lease:
                raise TooBig("a conditional put is limited to 60 KiB", path)
            return self._put_large(path, raw, perm)
        return self._put(path, raw, p.Tput(0, [], kind, flags, perm, if_version, lease, raw), True)

    def _put(self, path: str, data: bytes, like: p.Tput, fenced: bool) -> Op[FileID]:
        return self._changing(lambda n: self._put_once(n, path, like, fenced))

    def _put_once(self, n: _Change, path: str, like: p.Tput, fenced: bool) -> Op[FileID]:
        def op(f: Handle, names: list[str]) -> Op[p.Rput | Stopped]:
            m = replace(like, fid=f.fid, names=names)

            def send(once: Once | None) -> Op[p.Rput | Stopped]:
                return stoppable(f, p.carrying(m, once, f.fence), p.Rput)

            return (yield from n.do(f.session is self.session, send))

        r, _ = yield from self._at(path, op, False, fenced)
        return r.id

    def _put_large(self, path: str, data: bytes, perm: int) -> Op[FileID]:
        dir, name, _ = yield from self._parent(path)
        temp = f"put-{secrets.token_hex(6)}~"
        with using(path, dir):
            f = yield from dir.create(temp, 1 | 0o200, perm)
            try:
                yield from f.pwrite(data, 0)
                yield from f.ask(p.Tfsync(f.fid), p.Rfsync)
                yield from dir.ask(p.Trenameat(dir.fid, temp, dir.fid, name), p.Rrenameat)
                return (yield from f.stat()).id
            except SigmaError:
                dir.session.post(p.Tunlinkat(dir.fid, temp), dir.epoch)
                raise
            finally:
                f.close()

    def _reading(self, path: str, follow: bool, do: Callable[[Handle], Op[T]]) -> Op[T]:
        def op(f: Handle, names: list[str]) -> Op[T | Stopped]:
            file = yield from f.walk_to(names, follow)
            if isinstance(file, Stopped):
                return file
            try:
                return (yield from do(file))
            finally:
                file.close()

        return (yield from self._at(path, op))[0]

    def stat(self, path: str, sync: bool = False) -> Op[Stat]:
        """Tell what is known of a file; links are followed."""
        return self._reading(path, True, lambda f: f.stat(sync))

    def lstat(self, path: str) -> Op[Stat]:
        """Tell what is known of a file or link itself."""
        return self._reading(path, False, lambda f: f.stat())

    def exists(self, path: str) -> Op[bool]:
        """Whether there is something."""
        try:
            yield from self.stat(path)
        except NotFound:
            return False
        return True

    def scandir(self, path: str, sync: bool = False) -> Op[list[DirEntry]]:
        """List a directory, by name."""
        return self._reading(path, True, lambda f: f.list(sync=sync))

    def listdir(self, path: str) -> Op[list[str]]:
        """List the names in a directory."""
        return [e.name for e in (yield from self.scandir(path))]

    def readlink(self, path: str) -> Op[str]:
        """Give a symlink's target or an endpoint's text."""
        def do(f: Handle) -> Op[str]:
            return (yield from f.ask(p.Treadlink(f.fid), p.Rreadlink)).target

        return self._reading(path, False, do)

    def mkdir(self, path: str, perm: int = 0o755, *, parents: bool = False, exist_ok: bool = False) -> Op[None]:
        """Make a directory; with ``parents`` also what leads there, with ``exist_ok`` if it is missing."""
        try:
            yield from self._in_parent(path, p.Rmkdir, lambda d, name: p.Tmkdir(d.fid, name, perm))
        except NotFound:
            names = parse_path(path)
            if not parents or len(names) < 2:
                raise
            yield from self.mkdir(join_path(names[:-1]), perm, parents=True, exist_ok=True)
            yield from self.mkdir(path, perm, exist_ok=exist_ok)
        except (Exists, Invalid):
            if not exist_ok or not (yield from self.stat(path)).is_dir:
                raise

    def symlink(self, target: str, path: str) -> Op[None]:
        """Make a symlink at path."""
        return self._in_parent(path, p.Rsymlink, lambda d, name: p.Tsymlink(d.fid, name, target))

    def remove(self, path: str) -> Op[None]:
        """Remove a file, link or empty directory."""
        return self._in_parent(path, p.Runlinkat, lambda d, name: p.Tunlinkat(d.fid, name))

    def remove_tree(self, path: str) -> Op[None]:
        """Remove what is there and below it; nothing there is fine."""
        for _ in range(10):
            try:
                yield from self.remove(path)
                return
            except NotFound:
                return
            except DirectoryNotEmpty:
                try:
                    names = yield from self.listdir(path)
                except NotFound:
                    return
                for name in names:
                    yield from self.remove_tree(path.rstrip("/") + "/" + name)
        raise DirectoryNotEmpty("entries appear while it is removed", path)

    def rename(self, old: str, new: str) -> Op[None]:
        """Move a name to another one of the same server, replacing what is there."""
        return self._changing(lambda n: self._rename(n, old, new))

    def _rename(self, n: _Change, old: str, new: str) -> Op[None]:
        source, old_name, a = yield from self._parent(old)
        try:
            to, new_name, b = yield from self._parent(new)
        except SigmaError:
            source.close()
            raise
        with using(old, source, to):
            if a.mount != b.mount:
                raise Unsupported("a rename cannot go to another server", old, "copy the file, then remove it")
            if source.fence != to.fence:
                raise Unsupported("a rename cannot go from under one fence to under another", old)
            m = p.Trenameat(source.fid, old_name, to.fid, new_name)
            yield from n.do(not a.mount, lambda once: source.ask(m, p.Rrenameat, once))

    def set_stat(self, path: str, *, perm: int | None = None, size: int | None = None,
                 modified: int | None = None) -> Op[None]:
        """Change mode, size or time (nanoseconds)."""
        def change(n: _Change) -> Op[None]:
            f, c = yield from self._walk(path)
            m = p.Tsetattr(f.fid)
            if perm is not None:
                m.valid, m.mode = m.valid | p.SET_MODE, perm
            if size is not None:
                m.valid, m.size = m.valid | p.SET_SIZE, size
            if modified is not None:
                m.valid, m.mtime, m.mtime_nsec = m.valid | p.SET_MTIME, *divmod(modified, 10**9)
            with using(path, f):
                yield from n.do(not c.mount, lambda once: f.ask(m, p.Rsetattr, once))

        return self._changing(change)

    def watch(self, path: str, since: int = 0) -> Op[int]:
        """Wait until the version of a file or directory is beyond ``since``; gives it."""
        while True:
            epoch = self.session.epoch
            try:
                f, _ = yield from self._walk(path)
                try:
                    return (yield from f.ask(p.Twatch(f.fid, since), p.Rwatch)).version
                finally:
                    f.close()
            except Lost as e:
                if self.session.epoch == epoch or self.session.broken is not None:
                    _about(e, path)
                    raise
            except SigmaError as e:
                _about(e, path)
                raise

    def wait_for(self, path: str) -> Op[None]:
        """Wait until there is something at path."""
        while True:
            names = parse_path(path)
            for i in range(len(names), 0, -1):
                parent = join_path(names[: i - 1])
                try:
                    version = (yield from self.stat(parent)).version  # first, so that nothing in between is missed
                except NotFound:
                    continue
                try:
                    yield from self.lstat(join_path(names[:i]))
                except NotFound:
                    try:
                        yield from self.watch(parent, version)
                    except (NotFound, Stale):
                        pass
                break
            try:
                yield from self.lstat(path)
                return
            except NotFound:
                pass

    def call_file(self, path: str, method: str, payload: bytes = b"") -> Op[bytes]:
        """Run a method of a callable file."""
        f, _ = yield from self._walk(path)
        with using(path, f):
            return (yield from f.ask(p.Tcall(f.fid, method, payload), p.Rcall)).payload

    def open_handle(self, path: str, flags: int, perm: int, create: bool) -> Op[Handle]:
        """Open a file, with flags of open(2); with ``create`` make it if it is missing."""
        while True:
            def op(f: Handle, names: list[str]) -> Op[Handle | Stopped]:
                file = yield from f.walk_to(names, True)
                if isinstance(file, Handle):
                    file = replace(file, fence=f.fence)
                    try:
                        yield from file.open(flags & ~0o200)
                    except SigmaError:
                        file.close()
                        raise
                return file

            if not flags & 0o200:
                try:
                    return (yield from self._at(path, op, not flags & 3))[0]
                except NotFound:
                    if not create:
                        raise
            dir, name, _ = yield from self._parent(path)
            try:
                return (yield from dir.create(name, flags | 0o200, perm))
            except Exists as e:
                if flags & 0o200:
                    _about(e, path)
                    raise
            except SigmaError as e:
                _about(e, path)
                raise
            finally:
                dir.close()

    # Fences.

    def advance_epoch(self, path: str) -> Op[Fence]:
        """Add one to the epoch in a file, and give the fence of the new epoch. Nobody else gets the same."""
        word = secrets.token_hex(6)
        while True:
            epoch, version = 0, 0
            try:
                data, id = yield from self._get(path, True, False)
                epoch, by = _epoch(data, path)
                version = id.version
                if by == word:
                    return Fence((yield from self._real(path)), epoch)
            except NotFound:
                pass
            text = b"%d %s\n" % (epoch + 1, word.encode())
            flags = 0 if version else p.PUT_MUST_MAKE
            try:
                yield from self._put(path, text, p.Tput(0, [], 0, flags, 0o644, version, 0, text), False)
                return Fence((yield from self._real(path)), epoch + 1)
            except (VersionMismatch, Exists):
                pass
            except Lost:
                if self.session.broken is not None:
                    raise

    def _real(self, path: str) -> Op[str]:
        """Give the path that a file has after all links."""
        f, c = yield from self._walk(path, True, False)
        f.close()
        return join_path(c.path)

    def fence(self, fence: Fence | None, dir: str) -> Op[None]:
        """Have all requests for dir and what is under it carry a fence from now on; None ends it."""
        names = parse_path(dir)
        yield from ()
        with self.session.lock:
            kept = [(d, f) for d, f in self._fences if d != names]
            for d, f in self._fences:
                if d == names and fence and f.name == fence.name and fence.epoch < f.epoch:
                    raise Stale(f"the directory is fenced at epoch {f.epoch} already", dir)
            self._fences = [*kept, (names, fence)] if fence else kept

    # Calls of sigmad.

    def system(self, file: str, method: str, payload: bytes = b"") -> Op[tuple[bytes, list[int]]]:
        """Run a method of a file of /sys; gives the answer and file descriptors."""
        epoch = self.session.epoch
        f = self._system.get(file)
        if f is None or f.epoch != epoch:
            f, _ = yield from self.root.walk(["sys", file])
            if f is None:
                raise NotFound("", f"/sys/{file}")
            self._system[file] = f
        reply, fds = yield Request(f.session, p.Tcall(f.fid, method, payload), f.epoch)
        return reply.payload, fds

    def dial(self, endpoint: Endpoint) -> Op[socket.socket]:
        """Connect to an endpoint; the socket is between the two procs, sigmad is not on its way."""
        _, fds = yield from self.system("endpoints", "dial", pack((ENDPOINT, endpoint), (BOOL, False)))
        return one_socket(fds)


@contextlib.contextmanager
def using(path: str, *handles: Handle) -> Iterator[None]:
    """Make errors speak of the path that the program gave, and give handles up at the end."""
    try:
        yield
    except SigmaError as e:
        e.path = path
        raise
    finally:
        for h in handles:
            h.close()


def _about(e: SigmaError, path: str) -> SigmaError:
    """Make an error speak of the path that the program gave."""
    e.path = path
    return e


def _epoch(data: bytes, path: str) -> tuple[int, str]:
    words = data.split()
    if not data:
        return 0, ""
    if not 1 <= len(words) <= 2 or len(data) > 100 or not words[0].isdigit():
        raise Invalid("the file does not hold an epoch", path, "write the epoch to go on from in decimal digits")
    return int(words[0]), words[1].decode(errors="replace") if len(words) > 1 else ""


