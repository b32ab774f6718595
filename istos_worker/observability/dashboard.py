"""The dashboard: one page, what it asks for under /api/, and an operator's actions. Knows clients and pictures; the
page's own code is in dashboard.html."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import orjson

from istos_worker.client import Client
from istos_worker.errors import BadRequestError, IstosError
from istos_worker.observability.bodies import readable
from istos_worker.observability.guard import Guard
from istos_worker.observability.http import Request, Response
from istos_worker.observability.picture import Picture
from istos_worker.observability.survey import Survey
from istos_worker.wire.keys import queue_prefix

log = logging.getLogger(__name__)

_FRESH_S = 0.5
_PAGE = 50
_LONGEST_TEXT = 4000
"""Characters of a body or an error that are sent to the page."""
_SECURITY = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_NO_PAGE = "default-src 'none'; frame-ancestors 'none'"

Said = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The one document, and the policy under which a browser runs nothing but its own script."""

    html: bytes
    policy: str

    @classmethod
    def load(cls) -> Page:
        html = files(__package__).joinpath("dashboard.html").read_text()
        script, style = (_hash_of(html, tag) for tag in ("script", "style"))
        policy = (
            f"default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; img-src data:; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        return cls(html=html.encode(), policy=policy)


def _hash_of(html: str, tag: str) -> str:
    (inner,) = re.findall(f"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()}'"


class Dashboard:
    """`answer` is what a Server calls. Looks only when somebody looks at it."""

    def __init__(
        self, survey: Survey, guard: Guard, *, timeout_s: float = 5.0, read_only: bool = False
    ) -> None:
        self._survey = survey
        self._guard = guard
        self._timeout_s = timeout_s
        self._read_only = read_only
        self._page = Page.load()
        self._looks = _Looks(survey)
        self._reads: dict[str, Callable[[Said], Awaitable[Any]]] = {
            "/api/session": self._session,
            "/api/queues": self._queues,
            "/api/dead": self._dead,
            "/api/why": self._why,
        }
        self._acts: dict[str, Callable[[Said], Awaitable[Any]]] = {
            "/api/requeue": self._requeue,
            "/api/purge": self._purge,
            "/api/cancel": self._cancel,
            "/api/pause": self._pause,
            "/api/resume": self._resume,
        }

    async def look(self) -> Picture:
        """At most half a second old."""
        return await self._looks.picture()

    async def answer(self, request: Request) -> Response:
        made = self._guard.refusal(request) or await self._routed(request)
        policy = self._page.policy if made.body is self._page.html else _NO_PAGE
        return Response(
            status=made.status,
            body=made.body,
            headers={**made.headers, **_SECURITY, "Content-Security-Policy": policy},
        )

    async def _routed(self, request: Request) -> Response:
        path, is_get = request.path, request.method in ("GET", "HEAD")
        if is_get and path == "/":
            return Response(body=self._page.html, headers={"Content-Type": "text/html; charset=utf-8"})
        if is_get and path == "/livez":
            return Response(body=b"ok\n", headers={"Content-Type": "text/plain"})
        if path not in self._reads and path not in self._acts:
            return Response.error(404, "not_found", "there is nothing at this address")
        refused = self._guard.refusal_of_data(request)
        if refused is not None:
            return refused
        if path in self._reads:
            return await _told(self._reads[path], request.query) if is_get else _wrong_method("GET")
        return _wrong_method("POST") if request.method != "POST" else await self._changed(request)

    async def _changed(self, request: Request) -> Response:
        refused = self._guard.refusal_of_change(request)
        if refused is not None:
            return refused
        if self._read_only:
            return Response.error(403, "forbidden", "this dashboard only shows")
        try:
            said = orjson.loads(request.body)
        except orjson.JSONDecodeError:
            said = None
        if not isinstance(said, dict):
            return Response.error(400, "bad_request", "the body must be a JSON object")
        response = await _told(self._acts[request.path], said)
        self._looks.forget()
        what = request.path.removeprefix("/api/")
        whom = "all" if said.get("all") is True else said.get("job_id", "")
        log.info("dashboard: %s %.200r %.64r: %d", what, said.get("queue"), whom, response.status)
        return response

    async def _client(self) -> Client:
        """Raises OwnerUnreachable when it cannot be opened (yet)."""
        await self._survey.open()
        return self._survey.client

    # --- what is asked for -------------------------------------------------------------------------

    async def _session(self, said: Said) -> Any:
        from istos_worker import __version__

        return {"csrf": self._guard.csrf, "version": __version__, "read_only": self._read_only}

    async def _queues(self, said: Said) -> Any:
        return (await self.look()).as_dict()

    async def _dead(self, said: Said) -> Any:
        queue, after = _queue(said), _text(said, "after") if "after" in said else None
        client = await self._client()
        page = await client.dead_page(queue, limit=_PAGE, after=after, timeout_s=self._timeout_s)
        return {"jobs": [_letter(job) for job in page["jobs"][:_PAGE]], "next": page.get("next")}

    async def _why(self, said: Said) -> Any:
        queue, job_id = _queue(said), _text(said, "job_id")
        return await (await self._client()).why(queue, job_id, timeout_s=self._timeout_s)

    # --- what is done ------------------------------------------------------------------------------

    async def _requeue(self, said: Said) -> Any:
        queue, chosen = _queue(said), _one_or_all(said)
        count = await (await self._client()).dead_requeue(queue, chosen, timeout_s=self._timeout_s)
        return {"requeued": count}

    async def _purge(self, said: Said) -> Any:
        queue, chosen = _queue(said), _one_or_all(said)
        count = await (await self._client()).dead_purge(queue, chosen, timeout_s=self._timeout_s)
        return {"purged": count}

    async def _cancel(self, said: Said) -> Any:
        queue, job_id = _queue(said), _text(said, "job_id")
        return await (await self._client()).cancel(queue, job_id, timeout_s=self._timeout_s)

    async def _pause(self, said: Said) -> Any:
        queue = _queue(said)
        await (await self._client()).pause(queue, timeout_s=self._timeout_s)
        return {"paused": True}

    async def _resume(self, said: Said) -> Any:
        queue = _queue(said)
        await (await self._client()).resume(queue, timeout_s=self._timeout_s)
        return {"paused": False}


class _Looks:
    """One look for all who ask at about the same time."""

    def __init__(self, survey: Survey) -> None:
        self._survey = survey
        self._lock = asyncio.Lock()
        self._picture = Picture()
        self._fresh_until_s = 0.0

    def forget(self) -> None:
        self._fresh_until_s = 0.0

    async def picture(self) -> Picture:
        async with self._lock:
            if time.monotonic() >= self._fresh_until_s:
                self._picture = await self._survey.look()
                self._fresh_until_s = time.monotonic() + _FRESH_S
            return self._picture


async def _told(ask: Callable[[Said], Awaitable[Any]], said: Said) -> Response:
    try:
        return Response.of_json(await ask(said))
    except IstosError as failed:
        return Response.error(failed.status, failed.code, str(failed))


def _wrong_method(right: str) -> Response:
    refused = Response.error(405, "bad_request", f"this takes {right}")
    return Response(status=405, body=refused.body, headers={**refused.headers, "Allow": right})


def _queue(said: Said) -> str:
    return queue_prefix(_text(said, "queue"))


def _one_or_all(said: Said) -> str | None:
    """None is all of them, and must have been said."""
    if said.get("all") is True and "job_id" not in said:
        return None
    return _text(said, "job_id")


def _text(said: Said, name: str) -> str:
    value = said.get(name)
    if not isinstance(value, str) or not value:
        raise BadRequestError(f"{name} must be a text")
    return value


def _letter(job: Mapping[str, Any]) -> dict[str, Any]:
    """What the page shows of a dead letter, however large it is."""
    return {
        "job_id": job["job_id"],
        "attempts": job["attempts"],
        "last_error": _cut(job["last_error"] or ""),
        "history": [_cut(str(one)) for one in job.get("history", ())][-20:],
        "data": _cut(_shown(readable(job["data"]))),
    }


def _shown(data: Any) -> str:
    return data if isinstance(data, str) else orjson.dumps(data, option=orjson.OPT_INDENT_2).decode()


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}… ({len(text)} characters)"
