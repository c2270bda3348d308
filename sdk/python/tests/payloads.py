"""Payloads that only the system's own programs use; the vectors have them."""

from __future__ import annotations

from typing import Annotated, Any

from sigmaos.codec import STR, U32, U64, Bool, Codec, Data, Int, ListOf, Nested, Str, Strs, Struct
from sigmaos import messages as p
from sigmaos.errors import Invalid
from sigmaos.messages import Message
from sigmaos.types import ENDPOINT, VIEW, Endpoint, Principal, Qid, ViewEntry

Tickets = Annotated[list[str], ListOf(STR, 32)]


class Arrival(Struct):
    pool: U64
    from_: Principal
    first: U64
    line: Bool
    tickets: Tickets


class PoolAsk(Struct):
    endpoint: Annotated[Endpoint, ENDPOINT]
    unused: Annotated[list[int], ListOf(Int(8), 32)]
    count: U32
    over: Bool


class PoolGrant(Struct):
    line: Bool
    first: U64
    tickets: Tickets


class Service(Struct):
    name: Str
    proc: Str
    state: Str
    since: U64
    restarts: U32


class Limits(Struct):
    names: U64
    bytes: U64
    watches: U64
    leases: U64
    sessions: U64
    handles: U64
    scratch: U64
    max_cpu: U32
    min_cpu: U32
    reserve_cpu: U32
    max_memory: U64
    min_memory: U64
    reserve_memory: U64


class RealmInfo(Struct):
    id: Str
    created: U64
    procs: U32
    shares: U32
    limits: Limits


class Caps(Struct):
    id: Str
    realm: Str
    machine: Str
    profile: Str
    all: Bool
    view: Annotated[list[ViewEntry], VIEW]
    kin: Strs
    listens: Annotated[list[Endpoint], ListOf(ENDPOINT)]
    read: Annotated[list[Endpoint], ListOf(ENDPOINT)]
    entered: U32
    leases: Annotated[list[int], ListOf(Int(8))]
    memory: U64
    tasks: U32
    files: U32


# Messages that the SDK does not send.


class Tstatfs(Message, type=8):
    fid: U32


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


class Tgetattr(Message, type=24):
    fid: U32
    mask: U64


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


class Treaddir(Message, type=40):
    fid: U32
    offset: U64
    count: U32


class Rreaddir(Message, type=41):
    data: Data


class Tremove(Message, type=122):
    fid: U32


class Rremove(Message, type=123):
    pass


class Tfind(Message, type=150):
    fid: U32
    new_fid: U32
    path: U64


class Rfind(Message, type=151):
    pass


class Tbulk(Message, type=158):
    fid: U32


class Rbulk(Message, type=159):
    ticket: Data


class Tpass(Message, type=142):
    fid: U32


class Rpass(Message, type=143):
    pass


class Rlerror(Message, type=7):
    errno: U32


class Treadif(Message, type=146):
    fid: U32
    offset: U64
    count: U32
    version: U64


class Rreadif(Message, type=147):
    data: Data


class Twriteif(Message, type=148):
    fid: U32
    offset: U64
    version: U64
    data: Data


class Rwriteif(Message, type=149):
    count: U32
    version: U64


class Rwith(Message, type=145):
    """A reply that may be old: all that had changed ``age`` nanoseconds before is in it."""

    age: U64
    reply: Annotated[Message, p._Inside()]

    def check(self) -> None:
        type = self.reply.TYPE
        if not 0 < self.age < 1 << 63:
            raise Invalid("an age that cannot be")
        if type % 2 == 0 or type in (Rwith.TYPE, p.Rversion.TYPE, p.Rflush.TYPE, p.Rreset.TYPE):
            raise Invalid("a message that nothing can go with")


ARRIVAL: Codec[Any] = Nested(Arrival)
POOL_ASK: Codec[Any] = Nested(PoolAsk)
POOL_GRANT: Codec[Any] = Nested(PoolGrant)
SERVICES: Codec[Any] = ListOf[Any](Service)
REALM_INFOS: Codec[Any] = ListOf[Any](RealmInfo)
