"""Files at a server by handles, without input and output: the requests of one session."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import TypeVar

from . import messages as p
from .errors import Invalid, NotADirectory, NotFound, SigmaError, TooBig
from .session import ANY_EPOCH, Op, Request, Session, ask, close_all
from .types import DirEntry, Fence, FileID, FileKind, Once, Stat, check_name, join_path

M = TypeVar("M", bound=p.Message)

LIST_MOST = 1 << 20
NO_FILE = FileID()


@dataclass(frozen=True)
class Stopped:
    """Where a link ended a walk."""

    walked: int
    kind: int
    target: str


@dataclass
class Handle:
    """A file at a server, as a number of one session."""

    session: Session
    fid: int
    epoch: int
    id: FileID = NO_FILE
    fence: Fence | None = None
    aside: bool = False  # it is a part of another handle, and is not closed

    def ask(self, m: p.Message, want: type[M], once: Once | None = None, sync: bool = False) -> Op[M]:
        """Make a round trip about it, with the fence that it has."""
        return ask(self.session, p.carrying(m, once, self.fence, sync), want, self.epoch)

    def close(self) -> None:
        """Give it up, without waiting."""
        if not self.aside:
            self.session.clunk(self.fid, self.epoch)

    def walk(self, names: list[str]) -> Op[tuple[Handle | None, list[FileID]]]:
        """Give the file that names lead to, and the ids on the way; None if they end before."""
        s, epoch = self.session, self.session.epoch
        fid = s.new_fid()
        request = Request(s, p.carrying(p.Twalk(self.fid, fid, names), None, self.fence), self.epoch)
        request.undo = lambda: s.clunk(fid, epoch)
        try:
            reply, fds = yield request
        except SigmaError:
            if not request.abandoned:
                s.free_fid(fid)
            raise
        close_all(fds)
        ids = reply.ids
        if len(ids) > len(names) or (names and not ids):
            raise Invalid("the server answered a walk with what cannot be")
        if len(ids) < len(names):
            s.free_fid(fid)
            return None, ids
        return Handle(s, fid, epoch, ids[-1] if ids else self.id, self.fence), ids

    def walk_to(self, names: list[str], follow: bool) -> Op[Handle | Stopped]:
        """Walk all names, or tell which link is in the way."""
        file, ids = yield from self.walk(names)
        kind = ids[-1].kind if ids else FileKind.DIR
        link = kind in (FileKind.SYMLINK, FileKind.ENDPOINT)
        if file is not None and not (ids and link and follow):
            return file
        if file is None and not link:
            raise NotFound("", join_path(names)) if kind == FileKind.DIR else NotADirectory("", join_path(names))
        if file is None:
            file, _ = yield from self.walk(names[: len(ids)])
            if file is None:
                raise NotFound("", join_path(names))
        try:
            target = (yield from file.ask(p.Treadlink(file.fid), p.Rreadlink)).target
        finally:
            file.close()
        return Stopped(len(ids), kind, target)

    def stat(self, sync: bool = False) -> Op[Stat]:
        """Tell what is known of it."""
        return (yield from self.ask(p.Tdescribe(self.fid), p.Rdescribe, sync=sync)).stat

    def open(self, flags: int, once: Once | None = None, sync: bool = False) -> Op[None]:
        """Open it, with flags of open(2)."""
        yield from self.ask(p.Tlopen(self.fid, flags), p.Rlopen, once, sync)

    def create(self, name: str, flags: int, perm: int) -> Op[Handle]:
        """Make a file in this directory and open it."""
        made, _ = yield from self.walk([])
        assert made is not None
        try:
            made.id = (yield from made.ask(p.Tlcreate(made.fid, name, flags, perm), p.Rlcreate)).id
        except SigmaError:
            made.close()
            raise
        return made

    def pread(self, count: int, offset: int) -> Op[bytes]:
        """Read up to count bytes; fewer only at the end of the file, or where the server gives pieces."""
        count = min(count, p.DATA_MAX)
        data = (yield from self.ask(p.Tread(self.fid, offset, count), p.Rread)).data
        if len(data) > count:
            raise Invalid("the server gave more than was asked for")
        return data

    def pwrite(self, data: bytes, offset: int) -> Op[int]:
        """Write all of data, in as many messages as it takes."""
        room = p.DATA_MAX
        if self.fence:
            room -= max(0, len(self.fence.name.encode()) + 36 - 4032)
        at = 0
        while at < len(data):
            piece = data[at : at + room]
            n = (yield from self.ask(p.Twrite(self.fid, offset + at, piece), p.Rwrite)).count
            if not 0 < n <= len(piece):
                raise Invalid("the server wrote what cannot be")
            at += n
        return at

    def list(self, most: int = LIST_MOST, sync: bool = False) -> Op[list[DirEntry]]:
        """List the directory, which the handle is opened for."""
        yield from self.open(0, sync=sync)
        out: list[DirEntry] = []
        cookie, more = 0, True
        while more:
            r = yield from self.ask(p.Tlist(self.fid, cookie, 512), p.Rlist, sync=sync)
            if len(r.entries) > 512 or (r.more and not r.entries and r.next == cookie):
                raise Invalid("the server listed what cannot be")
            for e in r.entries:
                check_name(e.name)
            out += r.entries
            cookie, more = r.next, r.more
            if len(out) > most:
                raise TooBig(f"the directory has more than {most} entries")
        return sorted(out, key=lambda e: e.name)


def attach(s: Session, name: str) -> Op[Handle]:
    """Attach to a session's tree."""
    fid = s.new_fid()
    r = yield from ask(s, p.Tattach(fid, aname=name), p.Rattach)
    with s.lock:
        if s.lasting or s.resettable:
            s.attached[fid] = name
            return Handle(s, fid, ANY_EPOCH, r.id)
        return Handle(s, fid, s.epoch, r.id)


def one_socket(fds: list[int]) -> socket.socket:
    """Make a socket of what sigmad passed."""
    if len(fds) != 1:
        close_all(fds)
        raise Invalid(f"sigmad passed {len(fds)} sockets, not one")
    sock = socket.socket(fileno=fds[0])
    sock.setblocking(True)  # sigmad's sockets are not
    return sock


def stoppable(f: Handle, m: p.Message, want: type[M]) -> Op[M | Stopped]:
    """Make a round trip that a link may end."""
    reply, fds = yield Request(f.session, m, f.epoch)
    close_all(fds)
    if isinstance(reply, p.Rstop):
        return Stopped(reply.walked, reply.kind, reply.target)
    if not isinstance(reply, want):
        raise Invalid(f"the server answered with an unexpected {type(reply).__name__}")
    return reply
