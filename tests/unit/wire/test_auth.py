"""Who may do what: tokens, rights, roles, layers."""

from __future__ import annotations

import pytest

from istos_worker.errors import ForbiddenError, UnauthorizedError
from istos_worker.wire.auth import (
    AuthContext,
    Authorizer,
    Principal,
    Public,
    TokenAuthorizer,
    check_authorized,
    combine_authorizers,
    require_roles,
)


def asked(verb: str = "enqueue", token: bytes | None = None) -> AuthContext:
    return AuthContext(prefix="jobs/a", key_expr=f"jobs/a/{verb}", attachment=token, verb=verb)


async def test_a_token_is_taken_bare_and_in_an_envelope() -> None:
    authorizer = TokenAuthorizer("s3cr3t")

    for attachment in (b"s3cr3t", b'{"tok": "s3cr3t", "cid": "1"}'):
        assert await check_authorized(authorizer, asked(token=attachment)) is None
    for wrong in (None, b"", b"wrong", b"\xff", b'{"cid": "s3cr3t"}'):
        with pytest.raises(UnauthorizedError, match="jobs/a"):
            await check_authorized(authorizer, asked(token=wrong))


@pytest.mark.parametrize(
    ("rights", "allowed", "forbidden"),
    [
        ({"enqueue"}, {"enqueue", "enqueue_many", "info", "tick"}, {"claim", "result", "purge", "settle"}),
        ({"claim"}, {"claim", "ack", "nack", "settle", "extend", "release", "chord"}, {"enqueue", "pause"}),
        ({"ack"}, {"ack"}, {"settle", "claim"}),
        ("*", {"purge", "claim", "enqueue"}, set()),
        ("pause", {"pause", "resume"}, {"enqueue"}),
    ],
)
async def test_rights_are_per_verb(rights: set[str] | str, allowed: set[str], forbidden: set[str]) -> None:
    authorizer = TokenAuthorizer({"t": rights, "other": "*"})

    for verb in allowed:
        await check_authorized(authorizer, asked(verb, b"t"))
    for verb in forbidden:
        with pytest.raises(ForbiddenError, match=verb):
            await check_authorized(authorizer, asked(verb, b"t"))


@pytest.mark.parametrize("tokens", ["", [], {}, [""], {"": "*"}])
def test_no_token_and_an_empty_token_are_refused(tokens: object) -> None:
    with pytest.raises(ValueError, match="at least one token"):
        TokenAuthorizer(tokens)  # type: ignore[arg-type]


def test_a_right_that_is_no_verb_is_refused() -> None:
    with pytest.raises(ValueError, match="'enque'"):
        TokenAuthorizer({"t": {"enque"}})


def test_secrets_are_in_no_text() -> None:
    ctx = asked(token=b"s3cr3t")

    assert "s3cr3t" not in f"{ctx!r} {TokenAuthorizer('s3cr3t')!r}"


async def test_both_layers_must_allow() -> None:
    both = combine_authorizers(TokenAuthorizer("t"), lambda ctx: ctx.verb == "enqueue")

    await check_authorized(both, asked(token=b"t"))
    with pytest.raises(UnauthorizedError):
        await check_authorized(both, asked("claim", b"t"))
    with pytest.raises(UnauthorizedError):
        await check_authorized(both, asked())


async def test_public_lifts_the_apps_authorizer() -> None:
    def of_app(ctx: AuthContext) -> bool:
        return False

    assert combine_authorizers(of_app, Public) is None
    assert combine_authorizers(of_app, None) is of_app
    assert combine_authorizers(None, of_app) is of_app
    assert combine_authorizers(None, None) is None


async def alice(ctx: AuthContext) -> Principal:
    return Principal("alice", roles=frozenset({"producer", "reader"}))


@pytest.mark.parametrize(
    ("roles", "mode", "refusal"),
    [
        (("producer",), "all", None),
        (("producer", "reader"), "all", None),
        (("producer", "admin"), "all", ForbiddenError),
        (("producer", "admin"), "any", None),
        (("admin",), "any", ForbiddenError),
    ],
)
async def test_roles_are_those_of_the_principal_before(
    roles: tuple[str, ...], mode: str, refusal: type[Exception] | None
) -> None:
    guard: Authorizer = require_roles(*roles, mode=mode)  # type: ignore[arg-type]
    layered = combine_authorizers(alice, guard)

    if refusal is None:
        assert await check_authorized(layered, asked()) == Principal(
            "alice", frozenset({"producer", "reader"})
        )
    else:
        with pytest.raises(refusal):
            await check_authorized(layered, asked())


async def test_roles_of_nobody_are_unauthorized() -> None:
    with pytest.raises(UnauthorizedError):
        await check_authorized(require_roles("admin"), asked())
    await check_authorized(require_roles("reader", authenticator=alice), asked())
    with pytest.raises(ValueError, match="at least one role"):
        require_roles()
