from __future__ import annotations

from typing import Any

import pytest

from istos_worker.observability.guard import Guard, host_of, is_loopback
from istos_worker.observability.http import Request


def asked(**headers: str) -> Request:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Request(method="POST", path="/api/pause", headers={"host": "127.0.0.1:8080", **named})


def status(refusal: Any) -> int | None:
    return None if refusal is None else int(refusal.status)


@pytest.mark.parametrize(
    ("host", "refused"),
    [
        ("127.0.0.1:8080", None),
        ("localhost:9000", None),  # forwarded by ssh
        ("LOCALHOST", None),
        ("[::1]:8080", None),
        ("10.1.2.3:8080", None),  # an address cannot be made to point elsewhere
        ("dash.example.org", None),
        ("evil.example.org:8080", 421),
        ("127.0.0.1.evil.example.org", 421),
        ("user@localhost", 421),
        ("localhost/x", 421),
        ("localhost:nonsense", 421),
        ("", 421),
    ],
)
def test_only_names_of_ours_are_answered_to(host: str, refused: int | None) -> None:
    guard = Guard.of("127.0.0.1", token=None, allowed=["Dash.example.org"])

    assert status(guard.refusal(asked(host=host))) == refused


def test_a_request_without_a_host_is_refused() -> None:
    assert status(Guard.of("127.0.0.1", token=None).refusal(Request(method="GET", path="/"))) == 421


@pytest.mark.parametrize("host", ["0.0.0.0", "10.1.2.3", "::", "example.org", "127.0.0.1.example.org"])
def test_beyond_loopback_a_token_is_needed(host: str) -> None:
    with pytest.raises(ValueError, match="token is needed"):
        Guard.of(host, token=None)
    assert Guard.of(host, token="s3cr3t").token == "s3cr3t"


@pytest.mark.parametrize("token", ["", "two words", "schlüssel", "line\n"])
def test_a_token_that_no_header_carries_is_refused(token: str) -> None:
    with pytest.raises(ValueError, match="token must be ASCII"):
        Guard.of("127.0.0.1", token=token)


@pytest.mark.parametrize(
    ("shown", "refused"),
    [
        ("Bearer s3cr3t", None),
        ("bearer  s3cr3t", None),
        ("Bearer other", 401),
        ("Bearer ", 401),
        ("s3cr3t", 401),
        ("Basic s3cr3t", 401),
    ],
)
def test_data_is_for_those_who_have_the_token(shown: str, refused: int | None) -> None:
    guard = Guard.of("0.0.0.0", token="s3cr3t")

    assert status(guard.refusal_of_data(asked(authorization=shown))) == refused
    assert status(guard.refusal_of_data(asked())) == 401
    assert guard.refusal_of_data(Request(method="GET", path="/api/queues")) is not None


def test_on_loopback_data_is_for_everybody_here() -> None:
    assert Guard.of("127.0.0.1", token=None).refusal_of_data(asked()) is None


@pytest.mark.parametrize(
    ("headers", "refused"),
    [
        ({}, None),
        ({"origin": "http://127.0.0.1:8080"}, None),
        ({"origin": "https://127.0.0.1:8080", "sec_fetch_site": "same-origin"}, None),
        ({"content_type": "application/json; charset=utf-8"}, None),
        ({"origin": "http://evil.example.org"}, 403),
        ({"origin": "http://127.0.0.1:3000"}, 403),
        ({"origin": "http://127.0.0.1:8080.evil.example.org"}, 403),
        ({"origin": "null"}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "same-site"}, 403),
        ({"x_istos_csrf": "guessed"}, 403),
        ({"x_istos_csrf": ""}, 403),
        ({"content_type": "text/plain"}, 415),
        ({"content_type": "application/x-www-form-urlencoded"}, 415),
    ],
)
def test_only_our_own_page_changes_something(headers: dict[str, str], refused: int | None) -> None:
    guard = Guard.of("127.0.0.1", token=None)
    right = {"content_type": "application/json", "x_istos_csrf": guard.csrf}

    assert status(guard.refusal_of_change(asked(**{**right, **headers}))) == refused


def test_neither_secret_is_shown_by_repr() -> None:
    guard = Guard.of("127.0.0.1", token="s3cr3t")

    assert "s3cr3t" not in repr(guard)
    assert guard.csrf not in repr(guard)
    assert guard.csrf != Guard.of("127.0.0.1", token=None).csrf


def test_hosts_are_read_as_browsers_write_them() -> None:
    assert host_of("[::1]:80") == "::1"
    assert is_loopback("::1")
    assert not is_loopback("localhost.example.org")
