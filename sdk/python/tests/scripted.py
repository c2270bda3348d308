"""A server of sigmaP over a socket pair that answers as the test says; and a small tree in memory."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any

from sigmaos import messages as p
from sigmaos.codec import STR, pack
from sigmaos.session import inner
from sigmaos.types import DirEntry, FileID, FileKind, Info, Principal, Stat

Answer = Callable[["Server", int, p.Message], Any]
ENDPOINT = "sigma-endpoint/1 r m p AAAAAAAAAAAAAAAAAAAAAA tree"


class Server:
    """Serves one connection in a thread. ``files`` are paths and contents; a str is a symlink's target."""

    def __init__(self, files: dict[str, Any] | None = None) -> None:
        self.mine, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.files: dict[str, Any] = {"/": None, **(files or {})}
        self.fids: dict[int, str] = {}
        self.versions: dict[str, int] = {}
        self.seen: list[p.Message] = []
        self.hooks: dict[type[p.Message], Answer] = {}
        self.applied: set[tuple[int, int]] = set()
        self.system = False
        self.reset = ""
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def close(self) -> None:
        """End the connection, and wait for the thread."""
        self.mine.shutdown(socket.SHUT_RDWR)
        self.thread.join(5)
        self.mine.close()

    def send(self, tag: int, m: p.Message, fds: list[int] | None = None) -> None:
        if fds:
            socket.send_fds(self.mine, [p.encode(tag, m)], fds)
        else:
            self.mine.send(p.encode(tag, m))

    def begin_reset(self, nonce: int) -> None:
        """Do what a sigmad does that took over the connection."""
        self.reset = f".reset.{nonce:016x}"
        self.fids.clear()
        self.send(p.NO_TAG, p.Rreset(nonce))

    def _run(self) -> None:
        while True:
            try:
                record = self.mine.recv(p.MESSAGE_MAX)
            except OSError:
                return
            if not record:
                return
            tag, m = p.decode(record)
            if self.reset:
                if not isinstance(m, p.Tversion) or not m.version.endswith(self.reset):
                    continue
                self.send(tag, p.Rversion(m.msize, m.version.removesuffix(self.reset)))
                self.reset = ""
                continue
            self.seen.append(m)
            hook = self.hooks.get(type(inner(m)))
            answer = hook(self, tag, m) if hook else self.answer(m)
            if isinstance(answer, p.Message):
                try:
                    self.send(tag, answer)
                except OSError:
                    return

    def id(self, path: str) -> FileID:
        content = self.files[path]
        kind = FileKind.FILE
        if isinstance(content, str):
            kind = FileKind.ENDPOINT if content.startswith("sigma-endpoint") else FileKind.SYMLINK
        elif content is None:
            kind = FileKind.CALLABLE if path.startswith("/sys/") else FileKind.DIR
        return FileID(kind, abs(hash(path)) % 1000, self.versions.get(path, 1))

    def walk(self, path: str, names: list[str]) -> tuple[str, list[FileID]]:
        ids = []
        for name in names:
            if self.id(path).kind != FileKind.DIR:
                break
            path = path.rstrip("/") + "/" + name
            if path.startswith("/sys"):
                self.files.setdefault(path, None)
            if path not in self.files:
                break
            ids.append(self.id(path))
        return path, ids

    def answer(self, m: p.Message) -> p.Message:
        again = isinstance(m, p.Twith) and (m.client, m.seq) in self.applied
        if isinstance(m, p.Twith):
            self.applied.add((m.client, m.seq))
            m = m.request
        match m:
            case p.Tversion():
                return p.Rversion(m.msize, m.version)
            case p.Tattach():
                self.fids[m.fid] = "/"
                return p.Rattach(self.id("/"))
            case p.Twalk():
                path, ids = self.walk(self.fids[m.fid], m.names)
                if m.names and not ids:
                    return p.Rfail(2, "", "", "")
                if len(ids) == len(m.names):
                    self.fids[m.new_fid] = path
                return p.Rwalk(ids)
            case p.Tclunk():
                self.fids.pop(m.fid)
                return p.Rclunk()
            case p.Tget():
                return self.get(m)
            case p.Tput():
                return self.put(m, again)
            case p.Tdescribe():
                path = self.fids[m.fid]
                size = len(self.files[path] or b"")
                return p.Rdescribe(Stat(self.id(path), path.split("/")[-1], 0o644, size, 0, "", False, 0))
            case p.Tlopen():
                return p.Rlopen(self.id(self.fids[m.fid]), 0)
            case p.Tlist():
                return self.list(m)
            case p.Tread():
                return p.Rread(self.files[self.fids[m.fid]][m.offset : m.offset + m.count])
            case p.Treadlink():
                return p.Rreadlink(self.files[self.fids[m.fid]])
            case p.Tunlinkat():
                gone = self.files.pop(self.fids[m.dir].rstrip("/") + "/" + m.name, b"")
                return p.Rfail(2, "", "", "") if gone == b"" and not again else p.Runlinkat()
            case p.Tflush():
                return p.Rflush()
            case p.Tlease():
                return p.Rlease(m.id or 7)
            case p.Tcall():
                me = Principal("r", "p", "m", self.system)
                return p.Rcall(Info(me, "v").pack() if m.method == "info" else pack((STR, m.method)))
        return p.Rfail(15, "", "", "")

    def get(self, m: p.Tget) -> p.Message:
        path, ids = self.walk(self.fids[m.fid], m.names)
        if ids and ids[-1].kind in (FileKind.SYMLINK, FileKind.ENDPOINT):
            return p.Rstop(len(ids), ids[-1].kind, self.files[path])
        if len(ids) < len(m.names):
            return p.Rfail(2, "/there", "no such name", "look elsewhere")
        data = self.files[path]
        return p.Rget(self.id(path), len(data), data[m.offset : m.offset + m.count])

    def put(self, m: p.Tput, again: bool) -> p.Message:
        path = self.fids[m.fid].rstrip("/") + "/" + "/".join(m.names)
        if not again:
            if m.flags & p.PUT_MUST_MAKE and path in self.files:
                return p.Rfail(3, "", "", "")
            old = self.files.get(path, b"") if m.flags & p.PUT_APPEND else b""
            self.files[path] = m.data.decode() if m.kind in (2, 3) else old + m.data
            self.versions[path] = self.versions.get(path, 0) + 1
        return p.Rput(self.id(path))

    def list(self, m: p.Tlist) -> p.Message:
        at = self.fids[m.fid].rstrip("/") + "/"
        names = sorted(f[len(at) :] for f in self.files if f.startswith(at) and f != "/" and "/" not in f[len(at) :])
        page = [DirEntry(self.id(at + n), 0, i, n) for i, n in enumerate(names, 1)][m.cookie : m.cookie + 2]
        return p.Rlist(m.cookie + len(page), m.cookie + len(page) < len(names), page)
