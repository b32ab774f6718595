"""Who holds which deliveries, and whether they are alive. Knows tokens and claims; not retries."""

from __future__ import annotations


class Holder:
    """A worker process, or the nameless crowd of peer claims."""

    __slots__ = ()
