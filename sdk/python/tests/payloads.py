"""Payloads that only the system's own programs use; the vectors have them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from sigmaos.codec import STR, U32, U64, Bool, Codec, Int, ListOf, Nested, Str, Struct
from sigmaos.types import ENDPOINT, Endpoint, Principal

Tickets = Annotated[list[str], ListOf(STR, 32)]


@dataclass
class Arrival(Struct):
    pool: U64
    from_: Principal
    first: U64
    line: Bool
    tickets: Tickets


@dataclass
class PoolAsk(Struct):
    endpoint: Annotated[Endpoint, ENDPOINT]
    unused: Annotated[list[int], ListOf(Int(8), 32)]
    count: U32
    over: Bool


@dataclass
class PoolGrant(Struct):
    line: Bool
    first: U64
    tickets: Tickets


@dataclass
class Service(Struct):
    name: Str
    proc: Str
    state: Str
    since: U64
    restarts: U32


@dataclass
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


@dataclass
class RealmInfo(Struct):
    id: Str
    created: U64
    procs: U32
    shares: U32
    limits: Limits


ARRIVAL: Codec[Any] = Nested(Arrival)
POOL_ASK: Codec[Any] = Nested(PoolAsk)
POOL_GRANT: Codec[Any] = Nested(PoolGrant)
SERVICES: Codec[Any] = ListOf[Any](Service)
REALM_INFOS: Codec[Any] = ListOf[Any](RealmInfo)
