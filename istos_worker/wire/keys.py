"""Names on the mesh. Pure: strings in, strings out."""

from __future__ import annotations

import functools
import re

from istos_worker.errors import BadRequestError

_FORBIDDEN = re.compile(r"[*$?#;\s\x00-\x1f]")
MAX_PREFIX = 200

BASE_VERBS = frozenset(("enqueue", "claim", "ack", "nack", "result", "dead", "chord"))
"""What peer 0.3 speaks."""
_EXTENDED_VERBS = (
    "enqueue_many",
    "release",
    "extend",
    "settle",
    "info",
    "stats",
    "cancel",
    "pause",
    "resume",
    "requeue",
    "purge",
    "bury",
    "why",
    "workers",
    "tick",
)
VERBS = BASE_VERBS.union(_EXTENDED_VERBS)
"""All there is (docs/protocol.md)."""


@functools.lru_cache(maxsize=1024)
def queue_prefix(prefix: str) -> str:
    """The canonical form of a queue's name.

    Raises BadRequestError for what Zenoh could not take as a key or would read as a wildcard.
    """
    cleaned = prefix.strip("/")
    if not cleaned or len(cleaned) > MAX_PREFIX or "//" in cleaned or _FORBIDDEN.search(cleaned):
        raise BadRequestError(
            f"queue name {prefix!r} is not valid: use 1 to {MAX_PREFIX} characters, parts separated by single "
            "slashes, without * $ ? # ; or blanks"
        )
    if any(part.startswith(("_", "@")) for part in cleaned.split("/")):
        raise BadRequestError(f"queue name {prefix!r} is not valid: a part must not begin with _ or @")
    return cleaned


def verb_key(prefix: str, verb: str) -> str:
    return f"{prefix}/{verb}"


INFO_END = "/info"
"""Of the key of an owner's `info`."""


def notify_key(prefix: str) -> str:
    return f"{prefix}/notify"


def owner_key(prefix: str, owner: str) -> str:
    return f"{prefix}/_owners/{owner}"


def worker_key(prefix: str, worker: str) -> str:
    return f"{prefix}/_workers/{worker}"


def orders_key(prefix: str, worker: str) -> str:
    return f"{prefix}/_orders/{worker}"


def prefix_of(key: str) -> str:
    """The queue of a verb's key."""
    return key[: key.rfind("/")]


def last_part(key: str) -> str:
    """The id at the end of a liveliness key."""
    return key.rsplit("/", 1)[-1]
