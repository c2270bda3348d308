"""The words of sigmaOS that programs use: files, endpoints, procs. Times are nanoseconds, 0 = none."""

from __future__ import annotations

import base64
import enum
import re
from dataclasses import dataclass, field
from typing import Annotated, Any

from .codec import (I32, I64, STR, U8, U16, U32, U64, Apart, Bool, Codec, Data, Int, ListOf, Reader, Str, Strs, Struct)
from .errors import Invalid, SigmaError, of_kind

NAME_MAX = 255
PATH_MAX = 4096


class FileKind(enum.IntEnum):
    """What a file is."""

    FILE = 0
    DIR = 1
    SYMLINK = 2
    ENDPOINT = 3
    DEVICE = 4
    CALLABLE = 5
    PIPE = 6


_TO_QID = {1: 0x80, 2: 0x02, 3: 0x10, 4: 0x01, 5: 0x09, 6: 0x41}


def _of_qid(t: int) -> FileKind:
    for bit, kind in ((0x80, FileKind.DIR), (0x02, FileKind.SYMLINK), (0x10, FileKind.ENDPOINT)):
        if t & bit:
            return kind
    return {0x09: FileKind.CALLABLE, 0x41: FileKind.PIPE, 0x01: FileKind.DEVICE}.get(t, FileKind.FILE)


@dataclass(frozen=True)
class FileID:
    """Which file, and at which version: two with one ``path`` of one server are the same file."""

    kind: FileKind = FileKind.FILE
    path: int = 0
    version: int = 0


class _Qid(Codec[FileID]):
    least = 13

    def put(self, out: bytearray, value: FileID) -> None:
        out.append(_TO_QID.get(value.kind, 0))
        out += (value.version & 0xFFFFFFFF).to_bytes(4, "little") + value.path.to_bytes(8, "little")

    def take(self, r: Reader) -> FileID:
        kind, version, path = _of_qid(r.int(1)), r.int(4), r.int(8)
        return FileID(kind, path, version)


class _FileID(Codec[FileID]):
    least = 21

    def put(self, out: bytearray, value: FileID) -> None:
        QID.put(out, value)
        out += value.version.to_bytes(8, "little")

    def take(self, r: Reader) -> FileID:
        id = QID.take(r)
        return FileID(id.kind, id.path, r.int(8))


QID, FILEID = _Qid(), _FileID()
Qid = Annotated[FileID, QID]
WholeID = Annotated[FileID, FILEID]


class Stat(Struct):
    """What is known of a file."""

    id: WholeID
    name: Str
    perm: U32
    size: U64
    modified: I64
    owner: Str
    ephemeral: Bool
    hole: U64

    @property
    def kind(self) -> FileKind:
        """What the file is."""
        return self.id.kind

    @property
    def version(self) -> int:
        """The version it is at."""
        return self.id.version

    @property
    def is_dir(self) -> bool:
        """Whether it is a directory."""
        return self.id.kind == FileKind.DIR


class DirEntry(Struct):
    """An entry of a directory; the size is 0 where the server would have to look it up."""

    id: WholeID
    size: U64
    next: U64
    name: Str

    @property
    def kind(self) -> FileKind:
        """What the file is."""
        return self.id.kind


@dataclass(frozen=True)
class Endpoint:
    """A capability to connect to one listener of one proc."""

    realm: str
    machine: str
    proc: str
    id: str
    form: str

    def __str__(self) -> str:
        return " ".join(("sigma-endpoint/1", self.realm, self.machine, self.proc, self.id, self.form))

    @staticmethod
    def parse(text: str) -> Endpoint:
        """Read what ``str`` gives."""
        w = text.split(" ")
        if good := len(text) < 512 and len(w) == 6 and w[0] == "sigma-endpoint/1" and w[5] in ("tree", "stream"):
            try:
                raw = base64.urlsafe_b64decode(w[4] + "==")
            except ValueError:
                raw = b""
            exact = base64.urlsafe_b64encode(raw).rstrip(b"=").decode() == w[4]
            good = len(raw) == 16 and exact and re.fullmatch(r"[a-z0-9-]{0,64}", w[3]) is not None
            good = good and bool(w[1]) and bool(w[2])
        if not good:
            raise Invalid(f"{text[:80]!r} is not an endpoint")
        return Endpoint(*w[1:])


class _Endpoint(Codec[Endpoint]):
    least = 2

    def put(self, out: bytearray, value: Endpoint) -> None:
        STR.put(out, str(value))

    def take(self, r: Reader) -> Endpoint:
        return Endpoint.parse(STR.take(r))


ENDPOINT = _Endpoint()


class Principal(Struct):
    """Who a program is, as its machine says."""

    realm: Str = ""
    proc: Str = ""
    machine: Str = ""
    system: Bool = False


class Info(Struct):
    """Who and where the program is, and the version of its sigmad."""

    principal: Principal
    version: Str


class Outcome(enum.IntEnum):
    """How a proc ended."""

    NONE = 0
    OK = 1
    ERROR = 2
    EVICTED = 3
    CRASHED = 4
    OUT_OF_MEMORY = 5
    LOST = 6


class State(enum.IntEnum):
    """Where a proc is in its life."""

    QUEUED = 0
    STARTING = 1
    RUNNING = 2
    ENDED = 3


class Status(Struct):
    """How a proc ended."""

    code: U8 = 0
    exit_code: I32 = 0
    kind: U16 = 0
    msg: Str = ""
    data: Data = b""

    @property
    def outcome(self) -> Outcome:
        """The code as a name."""
        return Outcome(self.code)

    @property
    def ok(self) -> bool:
        """Whether it ended well."""
        return self.code == Outcome.OK

    @property
    def error(self) -> SigmaError | None:
        """What it failed with, as an exception."""
        return None if self.ok else of_kind(self.kind, self.msg or self.outcome.name.lower().replace("_", " "))


class Traffic(Struct):
    """What a proc's connections carried."""

    sent: U64 = 0
    received: U64 = 0
    messages: U64 = 0
    egress: U64 = 0
    ingress: U64 = 0


class Usage(Struct):
    """What a proc consumes: nanoseconds and bytes."""

    user_time: U64
    system_time: U64
    memory: U64
    memory_peak: U64
    tasks: U32
    output: U64
    traffic: Traffic


class Times(Struct):
    """When a proc came how far."""

    spawned: I64
    placed: I64
    contained: I64
    executed: I64
    started: I64
    ended: I64


class ProcInfo(Struct):
    """What is known of a proc."""

    id: Str
    realm: Str
    name: Str
    program: Str
    args: Strs
    parent: Str
    machine: Str
    class_: U8
    cpu: U32
    memory: U64
    profile: Str
    state: U8
    frozen: Bool
    status: Status
    times: Times
    timing: Annotated[list[int], ListOf(Int(8))]
    usage: Usage


class ViewEntry(Struct):
    """A path that a proc sees; rights are 0 none, 1 ro, 3 rc, 7 rw."""

    path: Str
    target: Str
    rights: U8


VIEW = ListOf[Any](ViewEntry)


class Descriptor(Struct):
    """A proc to start. ``latency_critical`` ones reserve ``cpu`` (in thousandths)."""

    program: Str
    name: Str = ""
    args: Strs = field(default_factory=list)
    env: Strs = field(default_factory=list)
    class_: U8 = 0
    cpu: U32 = 0
    memory: U64 = 0
    start: U8 = 0
    trace_parent: Str = ""
    profile: Str = ""
    where: Strs = field(default_factory=list)
    spread: Str = ""
    view: Annotated[list[ViewEntry] | None, Apart()] = None
    near: Annotated[str, Apart()] = ""

    def put(self, out: bytearray) -> None:
        super().put(out)
        out.append((self.view is not None) | bool(self.near) << 1)
        if self.view is not None:
            VIEW.put(out, self.view)
        if self.near:
            STR.put(out, self.near)

    @classmethod
    def take(cls, r: Reader) -> Descriptor:
        d = super().take(r)
        more = r.int(1)
        if more > 3:
            raise Invalid("a descriptor has something that is not known here")
        if more & 1:
            d.view = VIEW.take(r)
        if more & 2:
            d.near = STR.take(r)
        return d


DESCRIPTORS, PROC_INFOS = ListOf[Any](Descriptor), ListOf[Any](ProcInfo)
DESCRIPTORS.each.least, PROC_INFOS.each.least = 29, 144


@dataclass(frozen=True)
class Fence:
    """What keeps a deposed leader from changing what its successor answers for."""

    name: str
    epoch: int


@dataclass(frozen=True)
class Once:
    """The number of a change, so that it can be sent again and is made once."""

    client: int = 0
    seq: int = 0
    done: int = 0
    again: bool = False


def parse_path(path: str) -> list[str]:
    """Split an absolute path into its names."""
    if not path.startswith("/"):
        raise Invalid("a path begins with /", path, "as in /s3/in/a.txt")
    if len(path.encode("utf-8", "surrogateescape")) > PATH_MAX:
        raise Invalid("path is longer than 4096 bytes", path[:80])
    if path == "/":
        return []
    names = path[1:].removesuffix("/").split("/")
    for n in names:
        check_name(n, path)
    return names


def check_name(name: str, path: str = "") -> None:
    """Refuse what is no name."""
    if name in ("", ".", "..") or "\0" in name or "/" in name:
        raise Invalid(f"{name!r} is no name", path, "a path is written in full")
    if len(name.encode("utf-8", "surrogateescape")) > NAME_MAX:
        raise Invalid("a name is longer than 255 bytes", path[:80])


def join_path(names: list[str]) -> str:
    """Make a path of names."""
    return "/" + "/".join(names)


PROC_IDS = ListOf(STR)
