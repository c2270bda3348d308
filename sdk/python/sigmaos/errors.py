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


class SigmaError(Exception):
    """An error of sigmaOS: ``kind`` to decide by, ``path``, ``message`` and ``hint`` for people."""

    KIND: ClassVar[int] = 0
    WORDS: ClassVar[str] = "error"

    def __init__(self, message: str = "", path: str = "", hint: str = "", kind: int | None = None) -> None:
        super().__init__(message, path, hint)
        self.kind = self.KIND if kind is None else kind
        self.message = message
        self.path = path
        self.hint = hint
        #: The request was certainly not sent.
        self.unsent = False

    def __str__(self) -> str:
        words = [w for w in (self.path, self.WORDS) if w]
        if self.message and self.message != self.WORDS:
            words.append(self.message)
        return ": ".join(words) + (f" ({self.hint})" if self.hint else "")


class Invalid(SigmaError):
    """The request makes no sense."""

    KIND, WORDS = 1, "invalid"


class NotFound(SigmaError):
    """There is no such name, proc, realm or endpoint."""

    KIND, WORDS = 2, "not found"


class Exists(SigmaError):
    """The name is taken."""

    KIND, WORDS = 3, "exists"


class PermissionDenied(SigmaError):
    """The caller may not."""

    KIND, WORDS = 4, "permission denied"


class NotADirectory(SigmaError):
    """A component of the path is not a directory."""

    KIND, WORDS = 5, "not a directory"


class IsADirectory(SigmaError):
    """The file is a directory."""

    KIND, WORDS = 6, "is a directory"


class DirectoryNotEmpty(SigmaError):
    """The directory has entries."""

    KIND, WORDS = 7, "directory not empty"


class TooBig(SigmaError):
    """A limit on a size."""

    KIND, WORDS = 8, "too big"


class VersionMismatch(SigmaError):
    """The file is not at the expected version."""

    KIND, WORDS = 9, "version mismatch"


class Stale(SigmaError):
    """The request is of a deposed leader, or the file is gone."""

    KIND, WORDS = 10, "stale"


class Redirected(Stale):
    """A call is to be made at the member ``owner``. A handler that raises it sends the caller there."""

    def __init__(self, owner: str, message: str = "", path: str = "", hint: str = "") -> None:
        super().__init__(message or f"the member {owner} answers for this", path, hint)
        self.owner = owner


class Retryable(SigmaError):
    """Nothing was done: the same request may be made again."""


class Unavailable(Retryable):
    """The server cannot be reached now."""

    KIND, WORDS = 11, "unavailable"


class Timeout(SigmaError):
    """A deadline passed."""

    KIND, WORDS = 12, "timeout"


class Canceled(SigmaError):
    """The caller gave up."""

    KIND, WORDS = 13, "canceled"


class NoSpace(SigmaError):
    """A quota or a disk is full."""

    KIND, WORDS = 14, "no space"


class Unsupported(SigmaError):
    """This server does not do that."""

    KIND, WORDS = 15, "not supported"


class Lost(SigmaError):
    """Somebody died with the outcome: unknown whether the request took effect."""

    KIND, WORDS = 16, "lost"


class NotExecutable(SigmaError):
    """The program cannot be executed."""

    KIND, WORDS = 17, "not executable"


class Busy(Retryable):
    """A limit on concurrency."""

    KIND, WORDS = 18, "busy"


class TooManyLinks(SigmaError):
    """More than 40 links are on a path."""

    KIND, WORDS = 19, "too many links"


_BY_KIND: dict[int, type[SigmaError]] = {
    c.KIND: c
    for c in (
        *(Invalid, NotFound, Exists, PermissionDenied, NotADirectory, IsADirectory, DirectoryNotEmpty, TooBig),
        *(VersionMismatch, Stale, Unavailable, Timeout, Canceled, NoSpace, Unsupported, Lost, NotExecutable, Busy),
        TooManyLinks,
    )
}


def of_kind(kind: int, message: str = "", path: str = "", hint: str = "") -> SigmaError:
    """Make the exception of a kind's number."""
    return _BY_KIND.get(kind, SigmaError)(message[:1000], path[:1000], hint[:1000], kind=kind)
