"""The SDK of sigmaOS: files, procs, leases, leaders, endpoints and calls of a realm.

A proc calls :func:`open`, a program outside :func:`connect`; both give a :class:`Client`. The same
for asyncio is in :mod:`sigmaos.aio`. What goes wrong is raised as one tree::

    SigmaError
    |-- Invalid, NotFound, Exists, PermissionDenied, NotADirectory, IsADirectory, DirectoryNotEmpty
    |-- TooBig, VersionMismatch, NoSpace, Unsupported, NotExecutable, TooManyLinks
    |-- Stale                   fenced, or the file is gone
    |   `-- Redirected          of a call: another member answers for this
    |-- Retryable               nothing was done: the same request may be made again
    |   |-- Unavailable         the server cannot be reached now
    |   `-- Busy                a limit on concurrency
    |-- Timeout                 a deadline passed
    |-- Canceled                the caller gave up
    `-- Lost                    unknown whether the request took effect
"""

from .blocking import CallClient, CallServer, Client, File, Leadership, Lease, Membership, connect, open
from .calls import Call
from .core import Change
from .errors import (
    Busy, Canceled, DirectoryNotEmpty, Exists, Invalid, IsADirectory, Lost, NoSpace, NotADirectory, NotExecutable,
    NotFound, PermissionDenied, Redirected, Retryable, SigmaError, Stale, Timeout, TooBig, TooManyLinks, Unavailable,
    Unsupported, VersionMismatch,
)
from .types import (
    Descriptor, DirEntry, Endpoint, Fence, FileID, FileKind, Info, Outcome, Principal, ProcInfo, Stat, State, Status,
    Usage, ViewEntry,
)

__all__ = [
    "Busy", "Call", "CallClient", "CallServer", "Canceled", "Change", "Client", "Descriptor", "DirEntry",
    "DirectoryNotEmpty", "Endpoint", "Exists", "Fence", "File", "FileID", "FileKind", "Info", "Invalid",
    "IsADirectory", "Leadership", "Lease", "Lost", "Membership", "NoSpace", "NotADirectory",
    "NotExecutable", "NotFound", "Outcome", "PermissionDenied", "Principal", "ProcInfo", "Redirected", "Retryable",
    "SigmaError", "Stale", "Stat", "State", "Status", "Timeout", "TooBig", "TooManyLinks", "Unavailable",
    "Unsupported", "Usage", "VersionMismatch", "ViewEntry", "connect", "open",
]
