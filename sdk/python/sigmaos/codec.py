"""How fields become bytes: little endian, strings with 16 bits of length, data with 32.

A message or payload is a dataclass derived from :class:`Struct`; its annotations are its layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, TypeVar, get_origin, get_type_hints

from .errors import Invalid

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform():
        """Nothing at run time: for type checkers."""
        return lambda cls: cls


T = TypeVar("T")
S = TypeVar("S", bound="Struct")


class Reader:
    """Takes fields off bytes, in order."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = memoryview(data)
        self._pos = 0

    @property
    def left(self) -> int:
        """How many bytes are left."""
        return len(self._data) - self._pos

    def bytes(self, n: int) -> bytes:
        """Take n bytes."""
        if n > self.left:
            raise Invalid("message is truncated")
        self._pos += n
        return bytes(self._data[self._pos - n : self._pos])

    def int(self, size: int) -> int:
        """Take an integer of size bytes."""
        return int.from_bytes(self.bytes(size), "little")

    def finish(self) -> None:
        """Fail if anything is left."""
        if self.left:
            raise Invalid("message has bytes left over")


class Codec(Generic[T]):
    """How one field is written and read."""

    least = 1

    def put(self, out: bytearray, value: T) -> None:
        """Append a value."""
        raise NotImplementedError

    def take(self, r: Reader) -> T:
        """Read a value."""
        raise NotImplementedError


class Int(Codec[int]):
    """An integer of so many bytes."""

    def __init__(self, size: int, signed: bool = False) -> None:
        self.size = self.least = size
        self.signed = signed

    def put(self, out: bytearray, value: int) -> None:
        try:
            out += value.to_bytes(self.size, "little", signed=self.signed)
        except OverflowError:
            raise Invalid(f"{value} does not fit {self.size} bytes") from None

    def take(self, r: Reader) -> int:
        return int.from_bytes(r.bytes(self.size), "little", signed=self.signed)


class _Bool(Codec[bool]):
    def put(self, out: bytearray, value: bool) -> None:
        out.append(1 if value else 0)

    def take(self, r: Reader) -> bool:
        v = r.int(1)
        if v > 1:
            raise Invalid("a boolean is neither 0 nor 1")
        return v == 1


class _Str(Codec[str]):
    least = 2

    def put(self, out: bytearray, value: str) -> None:
        b = value.encode("utf-8", "surrogateescape")
        if len(b) > 0xFFFF:
            raise Invalid("string is longer than 65535 bytes")
        out += len(b).to_bytes(2, "little") + b

    def take(self, r: Reader) -> str:
        return r.bytes(r.int(2)).decode("utf-8", "surrogateescape")


class _Data(Codec[bytes]):
    least = 4

    def put(self, out: bytearray, value: bytes) -> None:
        out += len(value).to_bytes(4, "little")
        out += value

    def take(self, r: Reader) -> bytes:
        return r.bytes(r.int(4))


class ListOf(Codec[list[T]]):
    """A counted list; most bounds it."""

    least = 2

    def __init__(self, each: Codec[T] | type[Struct], most: int = 0xFFFF) -> None:
        self.each: Codec[Any] = each if isinstance(each, Codec) else Nested(each)
        self.most = most

    def put(self, out: bytearray, value: list[T]) -> None:
        if len(value) > self.most:
            raise Invalid(f"more than {self.most} elements")
        out += len(value).to_bytes(2, "little")
        for v in value:
            self.each.put(out, v)

    def take(self, r: Reader) -> list[T]:
        n = r.int(2)
        if n > self.most:
            raise Invalid(f"more than {self.most} elements")
        if n * self.each.least > r.left:
            raise Invalid("message is truncated")
        return [self.each.take(r) for _ in range(n)]


class Nested(Codec[Any]):
    """A struct within another."""

    def __init__(self, cls: type[Struct]) -> None:
        self.cls = cls

    def put(self, out: bytearray, value: Any) -> None:
        value.put(out)

    def take(self, r: Reader) -> Any:
        return self.cls.take(r)


class Apart(Codec[Any]):
    """A field that its struct writes and reads itself."""


@dataclass_transform()
class Struct:
    """Fields in order. Derive a dataclass; annotate each field with how it goes over the wire."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclass(cls)

    _known: ClassVar[tuple[tuple[str, Codec[Any]], ...] | None] = None

    @classmethod
    def layout(cls) -> tuple[tuple[str, Codec[Any]], ...]:
        """Give the fields that are written in order, with their codecs."""
        if (known := cls.__dict__.get("_known")) is None:
            fields: list[tuple[str, Codec[Any]]] = []
            for name, hint in get_type_hints(cls, include_extras=True).items():
                if get_origin(hint) is ClassVar:
                    continue
                codec = hint.__metadata__[0] if hasattr(hint, "__metadata__") else Nested(hint)
                if not isinstance(codec, Apart):
                    fields.append((name, codec))
            known = cls._known = tuple(fields)
        return known

    def put(self, out: bytearray) -> None:
        """Append all fields."""
        for name, codec in self.layout():
            codec.put(out, getattr(self, name))

    @classmethod
    def take(cls: type[S], r: Reader) -> S:
        """Read all fields."""
        return cls(*[codec.take(r) for _, codec in cls.layout()])

    def pack(self) -> bytes:
        """Give the bytes."""
        out = bytearray()
        self.put(out)
        return bytes(out)

    @classmethod
    def unpack(cls: type[S], data: bytes) -> S:
        """Read what pack gives; anything left over is an error."""
        r = Reader(data)
        value = cls.take(r)
        r.finish()
        return value


STR, BOOL, DATA = _Str(), _Bool(), _Data()

U8 = Annotated[int, Int(1)]
U16 = Annotated[int, Int(2)]
U32 = Annotated[int, Int(4)]
U64 = Annotated[int, Int(8)]
I32 = Annotated[int, Int(4, signed=True)]
I64 = Annotated[int, Int(8, signed=True)]
Bool = Annotated[bool, BOOL]
Str = Annotated[str, STR]
Data = Annotated[bytes, DATA]
Strs = Annotated[list[str], ListOf(STR)]
Names = Annotated[list[str], ListOf(STR, 64)]


def pack(*fields: tuple[Codec[Any], Any]) -> bytes:
    """Write fields that have no struct."""
    out = bytearray()
    for codec, value in fields:
        codec.put(out, value)
    return bytes(out)
