"""What both faces have in common: what is known without asking."""

from __future__ import annotations

from typing import Any

from . import core
from .errors import Lost
from .types import Fence, Info


class OfLease:
    """What is known of a lease."""

    _inner: core.Lease

    @property
    def id(self) -> int:
        """What ``put`` takes."""
        return self._inner.id

    @property
    def lost(self) -> bool:
        """Whether it is not kept any more."""
        return self._inner.lost.happened


class OfLeadership:
    """What is known of a leadership."""

    _inner: core.Leadership

    @property
    def fence(self) -> Fence:
        """What the leader's requests carry."""
        return self._inner.fence

    @property
    def lost(self) -> bool:
        """Whether the program may lead no more."""
        return self._inner.lost.happened


class OfMembership:
    """What is known of a membership."""

    _inner: core.Membership

    @property
    def path(self) -> str:
        """Where the endpoint is published."""
        return self._inner.path


class OfClient:
    """What is known of a client."""

    _inner: Any

    @property
    def info(self) -> Info:
        """Who and where the program is."""
        info: Info = self._inner.info
        return info

    @property
    def connected(self) -> bool:
        """Whether the connection has not ended for good. It goes on when sigmad dies and comes back."""
        return self._inner.session.broken is None

    def _end(self) -> None:
        for h in (self._inner.root, *self._inner._mounts.values()):
            h.session.fail(Lost("the client was closed"))
