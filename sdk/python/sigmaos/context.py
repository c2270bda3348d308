"""Where a program outside connects: what it says, else what the environment says."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from .errors import Invalid


@dataclass(frozen=True)
class Where:
    """A socket of sigmad, and how to use it."""

    address: str
    credential: str | None
    realm: str


def resolve(address: str | None, credential: str | None, realm: str | None) -> Where:
    """Fill in what was not given.

    ``SIGMA_CREDENTIAL`` is a credential or the name of a file that holds one, ``SIGMA_REALM`` a realm
    (default), ``SIGMA_ADDR`` a socket, ``SIGMA_DATA`` the system's directory (/var/lib/sigma): its
    realm.sock is for credentials, its sigmad/admin.sock for root. Whoever names a realm and no
    credential means the admin socket.
    """
    env = os.environ
    if credential is None and realm is None and address is None:
        credential = env.get("SIGMA_CREDENTIAL") or None
    if credential is not None:
        credential = _text(credential)
    data = env.get("SIGMA_DATA") or "/var/lib/sigma"
    if address is None:
        address = env.get("SIGMA_ADDR") or os.path.join(data, "realm.sock" if credential else "sigmad/admin.sock")
    if credential is not None:
        return Where(address, credential, realm or "")
    return Where(address, None, realm or env.get("SIGMA_REALM") or "default")


def _text(credential: str) -> str:
    if credential.strip().startswith("sigma-credential-1."):
        return credential.strip()
    try:
        return Path(credential).read_text(encoding="utf-8").strip()
    except OSError as e:
        raise Invalid("this is neither a credential nor a file that holds one") from e
