"""The test vectors of the protocol: every line is encoded and decoded, and refused when it is cut."""

from __future__ import annotations

import base64
import dataclasses
import json
import unittest
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from sigmaos import messages as p
from sigmaos.codec import STR, Codec, Int, ListOf, Nested, Reader, Struct
from sigmaos.errors import SigmaError
from sigmaos.types import (
    DESCRIPTORS,
    ENDPOINT,
    PROC_IDS,
    PROC_INFOS,

    Descriptor,
    Endpoint,
    FileID,
    Info,
    Principal,
    ProcInfo,
    Status,
    Usage,
)
from tests.payloads import ARRIVAL, Caps, POOL_ASK, POOL_GRANT, REALM_INFOS, SERVICES

VECTORS = Path(__file__).parents[3] / "wire/sigmap/testdata/vectors.txt"

PAYLOADS: dict[str, Codec[Any]] = {
    "Arrival": ARRIVAL,
    "Caps": Nested(Caps),
    "Descriptor": Nested(Descriptor),
    "Descriptors": DESCRIPTORS,
    "Endpoint": ENDPOINT,
    "Info": Nested(Info),
    "PoolAsk": POOL_ASK,
    "PoolGrant": POOL_GRANT,
    "Principal": Nested(Principal),
    "ProcID": STR,
    "ProcIDs": PROC_IDS,
    "ProcInfo": Nested(ProcInfo),
    "ProcInfos": PROC_INFOS,
    "RealmID": STR,
    "RealmInfos": REALM_INFOS,
    "Services": SERVICES,
    "Status": Nested(Status),
    "Usages": ListOf[Any](Usage),
}
TIMES = ("spawned", "placed", "contained", "executed", "started", "ended", "modified", "created", "since")


def plain(name: str) -> str:
    return name.replace("_", "").lower()


def nanoseconds(text: str) -> int:
    if text.startswith("0001-"):
        return 0
    whole, _, part = text.rstrip("Z").partition(".")
    at = datetime.fromisoformat(whole).replace(tzinfo=timezone.utc)
    return int(at.timestamp()) * 10**9 + int(part.ljust(9, "0") or 0)


def agrees(mine: Any, theirs: Any, name: str = "") -> bool:
    """Whether a value is what the vector's fields say."""
    if isinstance(mine, Endpoint) and isinstance(theirs, dict):
        return dataclasses.asdict(mine) == {k.lower(): v for k, v in theirs.items()}
    if isinstance(mine, p.Twith):
        o, f = theirs["Once"], theirs["Fence"]
        flags = o["Again"] * p.AGAIN | theirs["Sync"] * p.SYNC | theirs["Stale"] * p.STALE
        theirs = {"Flags": flags, "Client": o["Client"], "Seq": o["Seq"], "Done": o["Done"], "Fence": f["Name"],
                  "Epoch": f["Epoch"], "Request": theirs["Request"]}
    if isinstance(mine, (Struct, FileID)) or dataclasses.is_dataclass(mine):
        fields = {plain(f.name): getattr(mine, f.name) for f in dataclasses.fields(mine)}  # type: ignore[arg-type]
        if isinstance(mine, p.Tput):
            o = theirs["Options"]
            flags = o["MustMake"] * 1 | o["MustExist"] * 2 | o["Append"] * 4 | o["Wait"] * 8
            theirs = {**{k: v for k, v in theirs.items() if k != "Options"}, **{
                "Kind": o["Kind"], "Flags": flags, "Perm": o["Perm"], "IfVersion": o["IfVersion"], "Lease": o["Lease"],
            }}
        return len(fields) == len(theirs) and all(agrees(fields[plain(k)], v, k) for k, v in theirs.items())
    if isinstance(mine, bytes):
        return mine == base64.b64decode(theirs or "")
    if isinstance(mine, list):
        theirs = list(theirs.values()) if isinstance(theirs, dict) else theirs or []
        return len(mine) == len(theirs) and all(agrees(a, b) for a, b in zip(mine, theirs))
    if plain(name) in TIMES and isinstance(theirs, str):
        return bool(mine == nanoseconds(theirs))
    return bool(mine == theirs)


def lines() -> list[tuple[str, bytes, Any]]:
    out = []
    for line in VECTORS.read_text().splitlines():
        if line and not line.startswith("#"):
            name, hexed, fields = line.split("\t")
            out.append((name, bytes.fromhex(hexed), json.loads(fields)))
    return out


class TestVectors(unittest.TestCase):
    def test_all(self) -> None:
        vectors = lines()
        self.assertGreater(len(vectors), 90)
        for name, raw, fields in vectors:
            with self.subTest(name):
                if name.startswith("payload."):
                    codec = PAYLOADS[name.split(".")[1]]
                    value, size = self.payload(codec, raw), 0
                    out = bytearray()
                    codec.put(out, value)
                    again = bytes(out)
                else:
                    tag, value = p.decode(raw)
                    self.assertEqual(tag, 0x0102)
                    self.assertEqual(type(value).__name__, name.split(".")[0])
                    again, size = p.encode(tag, value), 1
                self.assertTrue(agrees(value, fields), (value, fields))
                self.assertEqual(again, raw)
                for wrong in (raw[:-1], raw + b"\0"):
                    if size:
                        wrong = len(wrong).to_bytes(4, "little") + wrong[4:]
                    with self.assertRaises(SigmaError):
                        if size:
                            p.decode(wrong)
                        else:
                            self.payload(PAYLOADS[name.split(".")[1]], wrong)

    def payload(self, codec: Codec[Any], raw: bytes) -> Any:
        r = Reader(raw)
        value = codec.take(r)
        r.finish()
        return value

    def test_every_message_has_one(self) -> None:
        named = {name.split(".")[0] for name, _, _ in lines()}
        mine = {c.__name__ for t, c in p.MESSAGES.items() if t}
        self.assertEqual(mine, {n for n in named if n != "payload"})

    def test_limits(self) -> None:
        with self.assertRaises(SigmaError):
            p.encode(1, p.Twalk(1, 2, ["n"] * 65))
        with self.assertRaises(SigmaError):
            p.encode(1, p.Tput(1, ["n"], 1, 0, 0, 0, 0, b""))
        with self.assertRaises(SigmaError):
            p.encode(1, p.Twrite(1, 0, b"x" * p.MESSAGE_MAX))
        with self.assertRaises(SigmaError):
            Int(4).put(bytearray(), 1 << 32)
        with self.assertRaises(SigmaError):
            ListOf(STR).take(Reader(b"\xff\xff"))


if __name__ == "__main__":
    unittest.main()
