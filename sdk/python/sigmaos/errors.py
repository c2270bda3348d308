"""What can go wrong: one tree of exceptions.

Decide by the class, show the message and ``hint`` to people::

    SigmaError                  kind 0, and kinds that are not known
    |-- Invalid                 the request makes no sense
    |-- NotFound                no such name, proc, realm, endpoint
    |-- Exists                  the name is taken
    |-- PermissionDenied        the caller may not
    |-- NotADirectory           a component is not a directory
    |-- IsADirectory            the file is a directory
    |-- DirectoryNotEmpty       it has entries
    |-- TooBig                  a limit on a size
    |-- VersionMismatch         the file is not at the expected version
    |-- Stale                   fenced, or the file is gone
    |   `-- Redirected          of a call: another member answers for this
    |-- Retryable               nothing was done: the same request may be made again
    |   |-- Unavailable         the server cannot be reached now
    |   `-- Busy                a limit on concurrency
    |-- Timeout                 a deadline passed
    |-- Canceled                the caller gave up
    |-- NoSpace                 quota or disk is full
    |-- Unsupported             this server does not do that
    |-- Lost                    unknown whether the request took effect
    |-- NotExecutable           the program cannot be executed
    `-- TooManyLinks            more than 40 links on a path
"""

from __future__ import annotations

from typing import ClassVar


_BY_KIND: dict[int, type[SigmaError]] = {}


class SigmaError(Exception):
    """An error of sigmaOS: ``kind`` to decide by, ``path``, ``message`` and ``hint`` for people."""

    KIND: ClassVar[int] = 0
    WORDS: ClassVar[str] = "error"

    def __init_subclass__(cls, kind: int | None = None, words: str = "") -> None:
        if kind is not None:
            cls.KIND, cls.WORDS = kind, words
            _BY_KIND[kind] = cls

    def __init__(self, message: str = "", path: str = "", hint: str = "", kind: int | None = None) -> None:
        super().__init__(message, path, hint)
        self.kind = self.KIND if kind is None else kind
        self.message, self.path, self.hint = message, path, hint
        #: The request was certainly not sent.
        self.unsent = False

    def __str__(self) -> str:
        words = [w for w in (self.path, self.WORDS) if w]
        if self.message and self.message != self.WORDS:
            words.append(self.message)
        return ": ".join(words) + (f" ({self.hint})" if self.hint else "")


class Invalid(SigmaError, kind=1, words="invalid"):
    """The request makes no sense."""


class NotFound(SigmaError, kind=2, words="not found"):
    """There is no such name, proc, realm or endpoint."""


class Exists(SigmaError, kind=3, words="exists"):
    """The name is taken."""


class PermissionDenied(SigmaError, kind=4, words="permission denied"):
    """The caller may not."""


class NotADirectory(SigmaError, kind=5, words="not a directory"):
    """A component of the path is not a directory."""


class IsADirectory(SigmaError, kind=6, words="is a directory"):
    """The file is a directory."""


class DirectoryNotEmpty(SigmaError, kind=7, words="directory not empty"):
    """The directory has entries."""


class TooBig(SigmaError, kind=8, words="too big"):
    """A limit on a size."""


class VersionMismatch(SigmaError, kind=9, words="version mismatch"):
    """The file is not at the expected version."""


class Stale(SigmaError, kind=10, words="stale"):
    """The request is of a deposed leader, or the file is gone."""


class Redirected(Stale):
    """A call is to be made at the member ``owner``. A handler that raises it sends the caller there."""

    def __init__(self, owner: str, message: str = "", path: str = "", hint: str = "") -> None:
        super().__init__(message or f"the member {owner} answers for this", path, hint)
        self.owner = owner


class Retryable(SigmaError):
    """Nothing was done: the same request may be made again."""


class Unavailable(Retryable, kind=11, words="unavailable"):
    """The server cannot be reached now."""


class Timeout(SigmaError, kind=12, words="timeout"):
    """A deadline passed."""


class Canceled(SigmaError, kind=13, words="canceled"):
    """The caller gave up."""


class NoSpace(SigmaError, kind=14, words="no space"):
    """A quota or a disk is full."""


class Unsupported(SigmaError, kind=15, words="not supported"):
    """This server does not do that."""


class Lost(SigmaError, kind=16, words="lost"):
    """Somebody died with the outcome: unknown whether the request took effect."""


class NotExecutable(SigmaError, kind=17, words="not executable"):
    """The program cannot be executed."""


class Busy(Retryable, kind=18, words="busy"):
    """A limit on concurrency."""


class TooManyLinks(SigmaError, kind=19, words="too many links"):
    """More than 40 links are on a path."""


def of_kind(kind: int, message: str = "", path: str = "", hint: str = "") -> SigmaError:
    """Make the exception of a kind's number."""
    return _BY_KIND.get(kind, SigmaError)(message[:1000], path[:1000], hint[:1000], kind=kind)
