"""Who may ask the dashboard what. A browser carries requests of any page its user looks at, so: the host must be ours
(DNS rebinding), the origin too (other pages), and whoever changes something must show a token that only our own page
could read. Pure."""

from __future__ import annotations

import hmac
import ipaddress
import re
import secrets
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from istos_worker.observability.http import Request, Response

CSRF_HEADER = "X-Istos-Csrf"
_TOKEN = re.compile(r"[!-~]+")


def is_loopback(host: str) -> bool:
    """Of names only `localhost`: what others mean may change."""
    if host == "localhost":
        return True
    address = _address(host)
    return address is not None and address.is_loopback


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """`token`: what everybody who asks for data must send as `Authorization: Bearer`; None where only this machine
    can ask. `hosts`: names by which browsers may know us, besides addresses and this machine's own name."""

    token: str | None = field(default=None, repr=False)
    hosts: frozenset[str] = frozenset()
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)

    @classmethod
    def of(cls, host: str, *, token: str | None, allowed: Iterable[str] = ()) -> Guard:
        """Raises ValueError when `host` is beyond loopback and there is no token, and for a token that no header can
        carry."""
        if token is not None and not _TOKEN.fullmatch(token):
            raise ValueError("the dashboard's token must be ASCII letters, digits and signs, without blanks")
        if token is None and not is_loopback(host):
            raise ValueError(f"{host} can be reached from other machines: a token is needed")
        named = (host, "localhost", socket.gethostname(), *allowed)
        return cls(token=token, hosts=frozenset(one.lower() for one in named))

    def refusal(self, request: Request) -> Response | None:
        """Why the page itself, which holds no data, is not given; None when it is."""
        host = host_of(request.headers.get("host", ""))
        # Nobody can make an address point elsewhere.
        if host is None or (host not in self.hosts and _address(host) is None):
            return Response.error(
                421, "forbidden", "this host name is not known here: give it to the dashboard by --allow-host"
            )
        return None

    def refusal_of_data(self, request: Request) -> Response | None:
        if self.token is not None and not self._has_token(request):
            refused = Response.error(401, "unauthorized", "this dashboard needs a token")
            return Response(
                status=401, body=refused.body, headers={**refused.headers, "WWW-Authenticate": "Bearer"}
            )
        return None

    def _has_token(self, request: Request) -> bool:
        scheme, _, shown = request.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and _is_same(shown.strip(), self.token or "")

    def refusal_of_change(self, request: Request) -> Response | None:
        headers = request.headers
        host = headers.get("host", "").lower()
        if headers.get("origin", f"http://{host}").lower() not in (f"http://{host}", f"https://{host}"):
            return Response.error(403, "forbidden", "this comes from another page")
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return Response.error(403, "forbidden", "this comes from another page")
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return Response.error(415, "bad_request", "the body must be application/json")
        if not _is_same(headers.get(CSRF_HEADER.lower(), ""), self.csrf):
            return Response.error(
                403, "forbidden", f"{CSRF_HEADER} must have the value that /api/session gives"
            )
        return None


def host_of(header: str) -> str | None:
    """The name or address in a Host header; None for what is none."""
    try:
        parts = urlsplit(f"//{header}")
        _ = parts.port
    except ValueError:
        return None
    return None if parts.username is not None or parts.path else parts.hostname


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _is_same(shown: str, right: str) -> bool:
    return hmac.compare_digest(shown.encode(), right.encode())
