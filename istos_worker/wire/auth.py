"""Who may ask what of a queue: authorizers over what a query says of itself. Pure; sees no queue.

An authorizer is a callable, sync or async, over an AuthContext. It returns a falsy value to deny, True to
allow, or any other truthy value to allow and say who asks. The rules are peer 0.3's, with the verb added.
"""

from __future__ import annotations

import hashlib
import hmac
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from istos_worker.errors import ForbiddenError, UnauthorizedError
from istos_worker.wire.envelope import decode_envelope
from istos_worker.wire.keys import VERBS


@dataclass(slots=True)
class AuthContext:
    """A request as an authorizer sees it."""

    prefix: str
    key_expr: str
    params: dict[str, str] = field(default_factory=dict)
    attachment: bytes | None = field(default=None, repr=False)
    operation: str = "queue"
    principal: Any = None
    """Who the authorizer before this one says it is (combine_authorizers)."""
    verb: str = ""

    @property
    def token(self) -> str | None:
        """The credential in the attachment, bare or in an envelope."""
        return decode_envelope(self.attachment).token


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks. An authorizer may return this, or a type of its own."""

    id: str
    roles: frozenset[str] = frozenset()
    claims: Mapping[str, Any] = field(default_factory=dict)

    def has_role(self, role: str) -> bool:
        return role in self.roles


Authorizer = Callable[[AuthContext], Any | Awaitable[Any]]

_IMPLIED: dict[str, frozenset[str]] = {
    # A right would be worth nothing without these, and none of them gives more than the right itself.
    "enqueue": frozenset(("enqueue_many", "tick")),
    "claim": frozenset(("ack", "nack", "release", "extend", "settle", "chord", "bury")),
    "pause": frozenset(("resume",)),
}
_ALWAYS = frozenset(("info",))


class TokenAuthorizer:
    """Allows whoever sends one of these tokens; compared in constant time.

    `TokenAuthorizer("secret")`, `TokenAuthorizer(["old", "new"])`, or with rights per token:
    `TokenAuthorizer({"producer": {"enqueue", "result"}, "operator": "*"})`. Rights are names of verbs;
    `enqueue` covers batches, and `claim` covers everything a worker does with what it claimed. A known
    token without the right gets ForbiddenError.
    """

    def __init__(self, tokens: str | Iterable[str] | Mapping[str, Literal["*"] | Iterable[str]]) -> None:
        named: Mapping[str, Literal["*"] | Iterable[str]]
        if isinstance(tokens, Mapping):
            named = tokens
        else:
            named = dict.fromkeys([tokens] if isinstance(tokens, str) else tokens, "*")
        if not named or not all(named):
            raise ValueError("TokenAuthorizer needs at least one token, and no empty one")
        self._rights = [(_digest(token), _rights(rights)) for token, rights in named.items()]

    def __repr__(self) -> str:
        return f"TokenAuthorizer({len(self._rights)} tokens)"

    def __call__(self, ctx: AuthContext) -> bool:
        token = ctx.token
        if token is None:
            return False
        digest = _digest(token)
        found: list[frozenset[str] | None] = []
        for known, rights in self._rights:  # all of them, whichever matches: no time to learn from
            if hmac.compare_digest(known, digest):
                found.append(rights)
        if not found:
            return False
        if any(rights is None or ctx.verb in rights for rights in found):
            return True
        raise ForbiddenError(f"this token may not {ctx.verb or ctx.operation} on {ctx.prefix!r}")


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _rights(rights: Literal["*"] | Iterable[str]) -> frozenset[str] | None:
    """None stands for all."""
    named = frozenset((rights,) if isinstance(rights, str) else rights)
    if "*" in named:
        return None
    unknown = sorted(named - VERBS)
    if unknown:
        raise ValueError(f"{unknown[0]!r} is not a verb; known: {', '.join(sorted(VERBS))}")
    return named.union(_ALWAYS, *(_IMPLIED.get(right, frozenset()) for right in named))


async def check_authorized(authorizer: Authorizer | None, ctx: AuthContext) -> Any:
    """Who asks, or None when nobody in particular may. Raises UnauthorizedError where it is denied."""
    if authorizer is None:
        return None
    verdict = authorizer(ctx)
    if inspect.isawaitable(verdict):
        verdict = await verdict
    return judge(verdict, ctx)


def judge(verdict: object, ctx: AuthContext) -> Any:
    """What an authorizer's answer means."""
    if not verdict:
        raise UnauthorizedError(f"Not authorized for '{ctx.prefix}'")
    return None if verdict is True else verdict


class _Public:
    """Lets everyone in; passed for one queue, it takes that queue out of the app-wide authorizer."""

    def __repr__(self) -> str:
        return "Public"

    def __call__(self, ctx: AuthContext) -> bool:
        return True


Public = _Public()


def combine_authorizers(for_app: Authorizer | None, for_queue: Authorizer | None) -> Authorizer | None:
    """Both must allow. `Public` for the queue lifts the app's; None adds nothing to it."""
    if for_queue is Public:
        return None
    if for_queue is None or for_app is None:
        return for_app or for_queue
    first, second = for_app, for_queue

    async def both(ctx: AuthContext) -> Any:
        ctx.principal = await check_authorized(first, ctx)
        return await check_authorized(second, ctx) or ctx.principal or True

    return both


def require_roles(
    *roles: str, mode: Literal["all", "any"] = "all", authenticator: Authorizer | None = None
) -> Authorizer:
    """Asks for roles of the principal that the app-wide authorizer, or `authenticator`, has named.

    Nobody named: UnauthorizedError. Named, without the roles: ForbiddenError.
    """
    if not roles:
        raise ValueError("require_roles() needs at least one role")
    if mode not in ("all", "any"):
        raise ValueError("mode must be 'all' or 'any'")
    required = frozenset(roles)

    async def with_roles(ctx: AuthContext) -> Any:
        if authenticator is not None:
            ctx.principal = await check_authorized(authenticator, ctx)
        if ctx.principal is None:
            raise UnauthorizedError(f"Authentication required for '{ctx.prefix}'")
        have = frozenset(getattr(ctx.principal, "roles", None) or ())
        if not (required & have if mode == "any" else required <= have):
            raise ForbiddenError(f"requires {mode} of the roles {sorted(required)}, has {sorted(have)}")
        return ctx.principal

    return with_roles
