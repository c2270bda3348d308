"""The messages of sigmaP (docs/reference/protocol.md): their layouts, and bytes of them."""

from __future__ import annotations

from typing import Annotated, ClassVar

from .codec import Bool, Codec, Data, ListOf, Names, Reader, Str, Struct, U8, U16, U32, U64
from .errors import Invalid, SigmaError, of_kind
from .types import PATH_MAX, QID, DirEntry, Fence, FileID, Once, Qid, Stat, WholeID

MESSAGE_MAX = 65536
DATA_MAX = 61440
WALK_MAX = 64
NO_TAG = 0xFFFF
NO_FID = 0xFFFFFFFF
SIGMA1, SIGMA2 = "9P2000.L.sigma1", "9P2000.L.sigma2"

PUT_MUST_MAKE, PUT_MUST_EXIST, PUT_APPEND, PUT_WAIT = 1, 2, 4, 8
SET_MODE, SET_SIZE, SET_MTIME = 1, 8, 32 | 256


class Message(Struct):
    """A request or a reply."""

    TYPE: ClassVar[int] = 0

    def __init_subclass__(cls, type: int = 0) -> None:
        super().__init_subclass__()
        cls.TYPE = type
        if type:
            MESSAGES[type] = cls

    def check(self) -> None:
        """Refuse what servers refuse."""


MESSAGES: dict[int, type[Message]] = {}


class _OfFid(Message):
    fid: U32


class _OfID(Message):
    id: Qid


class _OfWholeID(Message):
    id: WholeID


class _OfData(Message):
    data: Data


class _Opened(Message):
    id: Qid
    io_unit: U32


class _Version(Message):
    msize: U32
    version: Str


class Tlopen(Message, type=12):
    fid: U32
    flags: U32


class Rlopen(_Opened, type=13): ...


class Tlcreate(Message, type=14):
    fid: U32
    name: Str
    flags: U32
    mode: U32
    gid: U32 = 0


class Rlcreate(_Opened, type=15): ...


class Tsymlink(Message, type=16):
    fid: U32
    name: Str
    target: Str
    gid: U32 = 0


class Rsymlink(_OfID, type=17): ...
class Treadlink(_OfFid, type=22): ...


class Rreadlink(Message, type=23):
    target: Str


class Tsetattr(Message, type=26):
    fid: U32
    valid: U32 = 0
    mode: U32 = 0
    uid: U32 = 0
    gid: U32 = 0
    size: U64 = 0
    atime: U64 = 0
    atime_nsec: U64 = 0
    mtime: U64 = 0
    mtime_nsec: U64 = 0


class Rsetattr(Message, type=27): ...


class Tfsync(Message, type=50):
    fid: U32
    data_sync: U32 = 0


class Rfsync(Message, type=51): ...


class Tmkdir(Message, type=72):
    fid: U32
    name: Str
    mode: U32
    gid: U32 = 0


class Rmkdir(_OfID, type=73): ...


class Trenameat(Message, type=74):
    old_dir: U32
    old_name: Str
    new_dir: U32
    new_name: Str


class Rrenameat(Message, type=75): ...


class Tunlinkat(Message, type=76):
    dir: U32
    name: Str
    flags: U32 = 0


class Runlinkat(Message, type=77): ...
class Tversion(_Version, type=100): ...
class Rversion(_Version, type=101): ...


class Tattach(Message, type=104):
    fid: U32
    afid: U32 = NO_FID
    uname: Str = ""
    aname: Str = ""
    n_uname: U32 = NO_FID


class Rattach(_OfID, type=105): ...


class Tflush(Message, type=108):
    old_tag: U16


class Rflush(Message, type=109): ...


class Twalk(Message, type=110):
    fid: U32
    new_fid: U32
    names: Names


class Rwalk(Message, type=111):
    ids: Annotated[list[FileID], ListOf(QID)]


class Tread(Message, type=116):
    fid: U32
    offset: U64
    count: U32


class Rread(_OfData, type=117): ...


class Twrite(Message, type=118):
    fid: U32
    offset: U64
    data: Data


class Rwrite(Message, type=119):
    count: U32


class Tclunk(_OfFid, type=120): ...
class Rclunk(Message, type=121): ...


class Rfail(Message, type=129):
    kind: U16
    path: Str
    msg: Str
    hint: Str


class Rstop(Message, type=131):
    walked: U16
    kind: U8
    target: Str


class Rreset(Message, type=157):
    nonce: U64


class Tget(Message, type=132):
    fid: U32
    names: Names
    offset: U64
    count: U32


class Rget(Message, type=133):
    id: WholeID
    size: U64
    data: Data


class Tput(Message, type=134):
    fid: U32
    names: Names
    kind: U8
    flags: U32
    perm: U32
    if_version: U64
    lease: U64
    data: Data

    def check(self) -> None:
        if self.flags > 15 or self.kind not in (0, 2, 3, 6):
            raise Invalid("put has unknown flags or a kind that cannot be put")


class Rput(_OfWholeID, type=135): ...


class Twatch(Message, type=136):
    fid: U32
    since: U64


class Rwatch(Message, type=137):
    version: U64


class Tlease(Message, type=138):
    fid: U32
    id: U64
    ttl: U64


class Rlease(Message, type=139):
    id: U64


class Tcall(Message, type=140):
    fid: U32
    method: Str
    payload: Data


class Rcall(Message, type=141):
    payload: Data


class Tlist(Message, type=152):
    fid: U32
    cookie: U64
    max: U32


class Rlist(Message, type=153):
    next: U64
    more: Bool
    entries: Annotated[list[DirEntry], ListOf(DirEntry)]


class Tdescribe(_OfFid, type=154): ...


class Rdescribe(Message, type=155):
    stat: Stat


class _Inside(Codec[Message]):
    """A message within another: its type, then its fields."""

    def put(self, out: bytearray, value: Message) -> None:
        out.append(value.TYPE)
        value.check()
        value.put(out)

    def take(self, r: Reader) -> Message:
        type = r.int(1)
        if type == Twith.TYPE:  # before it is read, as it may have another one within it, and so on
            raise Invalid("a message that nothing can go with")
        return _new(type, r)


AGAIN, SYNC, STALE = 1, 2, 4


class Twith(Message, type=144):
    """A request together with what it carries."""

    flags: U8
    client: U64
    seq: U64
    done: U64
    fence: Str
    epoch: U64
    request: Annotated[Message, _Inside()]

    def check(self) -> None:
        type, numbered = self.request.TYPE, self.seq or self.done or self.flags & AGAIN
        if (not self.client and numbered) or (self.client and self.seq <= self.done):
            raise Invalid("a number of a mutation that cannot be")
        if (not self.fence and self.epoch) or len(self.fence) > PATH_MAX:
            raise Invalid("a fence that cannot be")
        if self.flags > 7 or not (self.client or self.fence or self.flags & (SYNC | STALE)):
            raise Invalid("nothing goes with the request, or what is not known")
        if type % 2 or type in (Twith.TYPE, Tversion.TYPE, Tflush.TYPE):
            raise Invalid("a message that nothing can go with")


def _new(type: int, r: Reader) -> Message:
    if (cls := MESSAGES.get(type)) is None:
        raise Invalid(f"there is no message of type {type}")
    m = cls.take(r)
    m.check()
    return m


def encode(tag: int, m: Message) -> bytes:
    """Give the bytes of a message."""
    out = bytearray(4)
    out.append(m.TYPE)
    out += tag.to_bytes(2, "little")
    m.check()
    m.put(out)
    if len(out) > MESSAGE_MAX:
        raise Invalid(f"a message of {len(out)} bytes; {MESSAGE_MAX} are possible")
    out[:4] = len(out).to_bytes(4, "little")
    return bytes(out)


def decode(buf: bytes | memoryview) -> tuple[int, Message]:
    """Read the one message in buf."""
    r = Reader(buf)
    if r.int(4) != len(buf):
        raise Invalid("a message's size is not that of its bytes")
    type, tag = r.int(1), r.int(2)
    m = _new(type, r)
    r.finish()
    return tag, m


def cut(record: memoryview) -> tuple[memoryview, memoryview]:
    """Take the first message off a record of several."""
    size = int.from_bytes(record[:4], "little")
    if not 7 <= size <= len(record):
        raise Invalid("a record's sizes do not add up")
    return record[:size], record[size:]


def error_of(m: Message) -> SigmaError | None:
    """Turn an error reply into an exception; None for others."""
    return of_kind(m.kind, m.msg, m.path, m.hint) if isinstance(m, Rfail) else None


def mutates(m: Message) -> bool:
    """Whether m is one change of files or leases, which may have a number."""
    if isinstance(m, Tlopen):
        return bool(m.flags & 0o1000)
    if isinstance(m, Tlease):
        return m.id == 0 or m.ttl == 0  # to renew one twice is as good as once
    return isinstance(m, (Tput, Twrite, Tlcreate, Tmkdir, Tsymlink, Trenameat, Tunlinkat, Tsetattr))


def carrying(m: Message, once: Once | None = None, fence: Fence | None = None, sync: bool = False) -> Message:
    """Give m together with what it carries, or m itself if that is nothing."""
    once = once if once and mutates(m) else None
    sync = sync and not mutates(m)
    if not (once or fence or sync):
        return m
    o, f = once or Once(), fence or Fence("", 0)
    return Twith(o.again * AGAIN | sync * SYNC, o.client, o.seq, o.done, f.name, f.epoch, m)
