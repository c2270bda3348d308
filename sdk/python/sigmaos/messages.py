"""The messages of sigmaP (docs/reference/protocol.md): their layouts, and bytes of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from .codec import U8, U16, U32, U64, Apart, Bool, Data, Int, ListOf, Names, Reader, Str, Struct
from .errors import Invalid, SigmaError, of_kind
from .types import PATH_MAX, QID, DirEntry, Fence, FileID, Once, Qid, Stat, WholeID

MESSAGE_MAX = 65536
DATA_MAX = 61440
WALK_MAX = 64
NO_TAG = 0xFFFF
NO_ONCE, NO_FENCE = Once(), Fence("", 0)
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
        MESSAGES[type] = cls


MESSAGES: dict[int, type[Message]] = {}


@dataclass
class Rlerror(Message, type=7):
    errno: U32


@dataclass
class Tstatfs(Message, type=8):
    fid: U32


@dataclass
class Rstatfs(Message, type=9):
    fs_type: U32
    block_size: U32
    blocks: U64
    blocks_free: U64
    blocks_avail: U64
    files: U64
    files_free: U64
    fsid: U64
    name_len: U32


@dataclass
class Tlopen(Message, type=12):
    fid: U32
    flags: U32


@dataclass
class Rlopen(Message, type=13):
    id: Qid
    io_unit: U32


@dataclass
class Tlcreate(Message, type=14):
    fid: U32
    name: Str
    flags: U32
    mode: U32
    gid: U32 = 0


@dataclass
class Rlcreate(Message, type=15):
    id: Qid
    io_unit: U32


@dataclass
class Tsymlink(Message, type=16):
    fid: U32
    name: Str
    target: Str
    gid: U32 = 0


@dataclass
class Rsymlink(Message, type=17):
    id: Qid


@dataclass
class Treadlink(Message, type=22):
    fid: U32


@dataclass
class Rreadlink(Message, type=23):
    target: Str


@dataclass
class Tgetattr(Message, type=24):
    fid: U32
    mask: U64


@dataclass
class Rgetattr(Message, type=25):
    valid: U64
    id: Qid
    mode: U32
    uid: U32
    gid: U32
    nlink: U64
    rdev: U64
    size: U64
    block_size: U64
    blocks: U64
    atime: U64
    atime_nsec: U64
    mtime: U64
    mtime_nsec: U64
    ctime: U64
    ctime_nsec: U64
    btime: U64
    btime_nsec: U64
    gen: U64
    data_version: U64


@dataclass
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


@dataclass
class Rsetattr(Message, type=27):
    pass


@dataclass
class Treaddir(Message, type=40):
    fid: U32
    offset: U64
    count: U32


@dataclass
class Rreaddir(Message, type=41):
    data: Data


@dataclass
class Tfsync(Message, type=50):
    fid: U32
    data_sync: Annotated[int, Apart()] = 0

    def put(self, out: bytearray) -> None:
        super().put(out)
        out += self.data_sync.to_bytes(4, "little")

    @classmethod
    def take(cls, r: Reader) -> Tfsync:
        m = super().take(r)
        if r.left:  # some clients leave it out
            m.data_sync = r.int(4)
        return m


@dataclass
class Rfsync(Message, type=51):
    pass


@dataclass
class Tmkdir(Message, type=72):
    fid: U32
    name: Str
    mode: U32
    gid: U32 = 0


@dataclass
class Rmkdir(Message, type=73):
    id: Qid


@dataclass
class Trenameat(Message, type=74):
    old_dir: U32
    old_name: Str
    new_dir: U32
    new_name: Str


@dataclass
class Rrenameat(Message, type=75):
    pass


@dataclass
class Tunlinkat(Message, type=76):
    dir: U32
    name: Str
    flags: U32 = 0


@dataclass
class Runlinkat(Message, type=77):
    pass


@dataclass
class Tversion(Message, type=100):
    msize: U32
    version: Str


@dataclass
class Rversion(Message, type=101):
    msize: U32
    version: Str


@dataclass
class Tattach(Message, type=104):
    fid: U32
    afid: U32 = NO_FID
    uname: Str = ""
    aname: Str = ""
    n_uname: U32 = NO_FID


@dataclass
class Rattach(Message, type=105):
    id: Qid


@dataclass
class Tflush(Message, type=108):
    old_tag: U16


@dataclass
class Rflush(Message, type=109):
    pass


@dataclass
class Twalk(Message, type=110):
    fid: U32
    new_fid: U32
    names: Names


@dataclass
class Rwalk(Message, type=111):
    ids: Annotated[list[FileID], ListOf(QID)]


@dataclass
class Tread(Message, type=116):
    fid: U32
    offset: U64
    count: U32


@dataclass
class Rread(Message, type=117):
    data: Data


@dataclass
class Twrite(Message, type=118):
    fid: U32
    offset: U64
    data: Data


@dataclass
class Rwrite(Message, type=119):
    count: U32


@dataclass
class Tclunk(Message, type=120):
    fid: U32


@dataclass
class Rclunk(Message, type=121):
    pass


@dataclass
class Tremove(Message, type=122):
    fid: U32


@dataclass
class Rremove(Message, type=123):
    pass


@dataclass
class Rfail(Message, type=129):
    kind: U16
    path: Str
    msg: Str
    hint: Str


@dataclass
class Rstop(Message, type=131):
    walked: U16
    kind: U8
    target: Str


@dataclass
class Rreset(Message, type=157):
    nonce: U64


@dataclass
class Tget(Message, type=132):
    fid: U32
    names: Names
    offset: U64
    count: U32


@dataclass
class Rget(Message, type=133):
    id: WholeID
    size: U64
    data: Data


@dataclass
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
        """Refuse what servers refuse."""
        if self.flags > 15 or self.kind not in (0, 2, 3, 6):
            raise Invalid("put has unknown flags or a kind that cannot be put")


@dataclass
class Rput(Message, type=135):
    id: WholeID


@dataclass
class Twatch(Message, type=136):
    fid: U32
    since: U64


@dataclass
class Rwatch(Message, type=137):
    version: U64


@dataclass
class Tlease(Message, type=138):
    fid: U32
    id: U64
    ttl: U64


@dataclass
class Rlease(Message, type=139):
    id: U64


@dataclass
class Tcall(Message, type=140):
    fid: U32
    method: Str
    payload: Data


@dataclass
class Rcall(Message, type=141):
    payload: Data


@dataclass
class Tpass(Message, type=142):
    fid: U32


@dataclass
class Rpass(Message, type=143):
    pass


@dataclass
class Treadif(Message, type=146):
    fid: U32
    offset: U64
    count: U32
    version: U64


@dataclass
class Rreadif(Message, type=147):
    data: Data


@dataclass
class Twriteif(Message, type=148):
    fid: U32
    offset: U64
    version: U64
    data: Data


@dataclass
class Rwriteif(Message, type=149):
    count: U32
    version: U64


@dataclass
class Tfind(Message, type=150):
    fid: U32
    new_fid: U32
    path: U64


@dataclass
class Rfind(Message, type=151):
    pass


@dataclass
class Tlist(Message, type=152):
    fid: U32
    cookie: U64
    max: U32


@dataclass
class Rlist(Message, type=153):
    next: U64
    more: Bool
    entries: Annotated[list[DirEntry], ListOf(DirEntry)]


@dataclass
class Tdescribe(Message, type=154):
    fid: U32


@dataclass
class Rdescribe(Message, type=155):
    stat: Stat


@dataclass
class Tbulk(Message, type=158):
    fid: U32


@dataclass
class Rbulk(Message, type=159):
    ticket: Data


_AGAIN, _SYNC, _STALE = 1, 2, 4


@dataclass
class Twith(Message, type=144):
    """A request together with what it carries."""

    once: Annotated[Once, Apart()] = NO_ONCE
    fence: Annotated[Fence, Apart()] = NO_FENCE
    sync: Annotated[bool, Apart()] = False
    stale: Annotated[bool, Apart()] = False
    request: Annotated[Message, Apart()] = field(default_factory=Rflush)

    def put(self, out: bytearray) -> None:
        o, f = self.once, self.fence
        out.append(o.again * _AGAIN | self.sync * _SYNC | self.stale * _STALE)
        Int(8).put(out, o.client)
        Int(8).put(out, o.seq)
        Int(8).put(out, o.done)
        _name(out, f.name)
        Int(8).put(out, f.epoch)
        out.append(self.request.TYPE)
        self._check(self.request.TYPE)
        _check(self.request)
        self.request.put(out)

    @classmethod
    def take(cls, r: Reader) -> Twith:
        flags, client, seq, done = r.int(1), r.int(8), r.int(8), r.int(8)
        name, epoch, type = r.bytes(r.int(2)).decode("utf-8", "surrogateescape"), r.int(8), r.int(1)
        if flags > 7:
            raise Invalid("a request carries what is not known")
        once = Once(client, seq, done, bool(flags & _AGAIN))
        m = cls(once, Fence(name, epoch), bool(flags & _SYNC), bool(flags & _STALE))
        m._check(type)
        m.request = _new(type, r)
        return m

    def _check(self, type: int) -> None:
        o, f = self.once, self.fence
        if (o.client == 0 and o != Once()) or (o.client and o.seq <= o.done):
            raise Invalid("a number of a mutation that cannot be")
        if (not f.name and f.epoch) or len(f.name) > PATH_MAX:
            raise Invalid("a fence that cannot be")
        if not (o.client or f.name or self.sync or self.stale):
            raise Invalid("nothing goes with the request")
        if type % 2 or type in (Twith.TYPE, Tversion.TYPE, Tflush.TYPE):
            raise Invalid("a message that nothing can go with")


@dataclass
class Rwith(Message, type=145):
    """A reply that may be old: all that had changed ``age`` nanoseconds before is in it."""

    age: Annotated[int, Apart()] = 0
    reply: Annotated[Message, Apart()] = field(default_factory=Rflush)

    def put(self, out: bytearray) -> None:
        self._check(self.reply.TYPE)
        Int(8).put(out, self.age)
        out.append(self.reply.TYPE)
        self.reply.put(out)

    @classmethod
    def take(cls, r: Reader) -> Rwith:
        m = cls(r.int(8))
        type = r.int(1)
        m._check(type)
        m.reply = _new(type, r)
        return m

    def _check(self, type: int) -> None:
        if not 0 < self.age < 1 << 63:
            raise Invalid("an age that cannot be")
        if type % 2 == 0 or type in (Rwith.TYPE, Rversion.TYPE, Rflush.TYPE, Rreset.TYPE):
            raise Invalid("a message that nothing can go with")


def _name(out: bytearray, name: str) -> None:
    b = name.encode("utf-8", "surrogateescape")
    Int(2).put(out, len(b))
    out += b


def _check(m: Message) -> None:
    if isinstance(m, Tput):
        m.check()


def _new(type: int, r: Reader) -> Message:
    cls = MESSAGES.get(type)
    if cls is None or type == 0:
        raise Invalid(f"there is no message of type {type}")
    m = cls.take(r)
    _check(m)
    return m


def encode(tag: int, m: Message) -> bytes:
    """Give the bytes of a message."""
    out = bytearray(4)
    out.append(m.TYPE)
    out += tag.to_bytes(2, "little")
    _check(m)
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
    if isinstance(m, Rfail):
        return of_kind(m.kind, m.msg, m.path, m.hint)
    if isinstance(m, Rlerror):
        return SigmaError(f"errno {m.errno}")
    return None


def mutates(m: Message) -> bool:
    """Whether m is one change of files or leases, which may have a number."""
    if isinstance(m, Tlopen):
        return bool(m.flags & 0o1000)
    if isinstance(m, Tlease):
        return m.id == 0 or m.ttl == 0  # to renew one twice is as good as once
    return isinstance(
        m, (Tput, Twrite, Twriteif, Tlcreate, Tmkdir, Tsymlink, Trenameat, Tunlinkat, Tsetattr)
    )


def carrying(m: Message, once: Once | None = None, fence: Fence | None = None, sync: bool = False) -> Message:
    """Give m together with what it carries, or m itself if that is nothing."""
    once = once if once and mutates(m) else None
    sync = sync and not mutates(m)
    if not (once or fence or sync):
        return m
    return Twith(once or Once(), fence or Fence("", 0), sync, False, m)
