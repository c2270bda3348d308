"""Sockets: how a program reaches sigmad, and what goes over them. Only calls that procs may make are used."""

from __future__ import annotations

import array
import os
import socket
import struct
import time

from . import messages as p
from .calls import Connection
from .codec import BOOL, STR, Int, Reader, pack
from .errors import Busy, Invalid, Lost, PermissionDenied, SigmaError, Unavailable, of_kind
from .session import Session, close_all

FDS_MOST = 17
CONNECT_MOST = 10.0  # seconds that a program waits for its turn among all that connect
SYSTEM_FILE = 3  # of a proc, from its birth


def of_proc() -> socket.socket:
    """Give the socket that a proc is born with."""
    try:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fileno=SYSTEM_FILE)
        if sock.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) != socket.SOCK_SEQPACKET:
            sock.detach()
            raise OSError("descriptor 3 is another socket")
    except OSError as e:
        raise Unavailable("this process is not a proc", "", "start it with: sigma run PROGRAM") from e
    sock.setblocking(False)
    return sock


def connect(addr: str, credential: str | None) -> socket.socket:
    """Connect to a socket of sigmad and, with a credential, greet it. Blocks."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        dir = os.open(os.path.dirname(os.path.abspath(addr)), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:  # by the directory, which makes any path short enough
            _connect(sock, f"/proc/self/fd/{dir}/{os.path.basename(addr)}")
        finally:
            os.close(dir)
        if credential is not None:
            _greet(sock, credential.strip())
    except OSError as e:
        sock.close()
        raise _failed(addr, e) from e
    except BaseException:
        sock.close()
        raise
    sock.setblocking(False)
    return sock


def _connect(sock: socket.socket, addr: str) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 1, 0))
    until = time.monotonic() + CONNECT_MOST
    while True:
        try:
            sock.connect(addr)
            break
        except BlockingIOError:  # too many connect; the kernel gives turns to who waits
            if time.monotonic() > until:
                raise
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 0))


def _greet(sock: socket.socket, credential: str) -> None:
    record = pack((STR, "sigma-greeting-1"), (STR, credential))
    if len(record) > 1024:
        raise Invalid("this is not a credential")
    sock.settimeout(CONNECT_MOST)
    sock.send(record)
    if not (answer := sock.recv(1025)):
        raise Busy("sigmaOS closed the connection before it answered", "", "try again in a moment")
    r = Reader(answer)
    good, kind, message, hint = BOOL.take(r), Int(2).take(r), STR.take(r), STR.take(r)
    r.finish()
    if not good:
        raise of_kind(kind, message, "", hint)


def _failed(addr: str, e: OSError) -> SigmaError:
    if isinstance(e, PermissionError):
        return PermissionDenied(f"may not use {addr}", "", "run as root, or with a credential of a realm")
    if isinstance(e, (BlockingIOError, TimeoutError)):
        return Busy(f"sigmaOS at {addr} had no turn for this program: too many connect at once")
    return Unavailable(f"no sigmaOS answers at {addr}", "", "start it with: sigma up --detach")


def receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    """Take a record and its file descriptors; raises BlockingIOError if there is none."""
    room = socket.CMSG_SPACE(FDS_MOST * 4)
    try:
        data, extra, flags, _ = sock.recvmsg(p.MESSAGE_MAX + 1, room, socket.MSG_CMSG_CLOEXEC)
    except BlockingIOError:
        raise
    except OSError as e:
        raise Lost(str(e)) from e
    fds = array.array("i")
    for level, type, content in extra:
        if level == socket.SOL_SOCKET and type == socket.SCM_RIGHTS:
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC) or len(data) > p.MESSAGE_MAX:
        close_all(list(fds))
        raise Invalid("a record is too long")
    return data, list(fds)


def take(port: Session | Connection, sock: socket.socket) -> bool:
    """Give a session a record, or a connection of calls bytes; False at the end."""
    if isinstance(port, Session):
        port.received(*receive(sock))
        return True
    data = sock.recv(1 << 18)
    port.feed(data)
    return bool(data) and port.error is None
