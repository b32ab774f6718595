"""A web application without an event loop, as Flask and Django are, that puts jobs on a queue.

    python -m examples.sync_producer        # serves one request of its own through WSGI, with a fleet behind it

`SyncClient()` at module level starts nothing, so a server may fork its workers first; the first call in each of them
opens a session of its own.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults

from examples.fleet import Fleet
from istos_worker import App, SyncClient

app = App("sync-producer")
app.queue("jobs/greet", keep_results=True)


@app.worker("jobs/greet")
def greet(job: dict[str, str]) -> str:
    return f"hello {job['name']}"


class Site:
    """The web application: `POST /greet/NAME` enqueues, `GET /jobs/ID` asks what became of it."""

    def __init__(self, client: SyncClient) -> None:
        self._client = client

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        kind, _, name = environ["PATH_INFO"].strip("/").partition("/")
        if environ["REQUEST_METHOD"] == "POST" and kind == "greet":
            answer: dict[str, Any] = {
                "job_id": self._client.enqueue("jobs/greet", {"name": name}, timeout_s=30)
            }
        elif kind == "jobs":
            answer = dict(self._client.result("jobs/greet", name, wait_s=30))
        else:
            start_response("404 Not Found", [])
            return [b""]
        start_response("200 OK", [("Content-Type", "application/json")])
        return [json.dumps(answer).encode()]


def request(site: Site, method: str, path: str) -> dict[str, Any]:
    """What a web server would do with one request."""
    environ: dict[str, Any] = {"REQUEST_METHOD": method, "PATH_INFO": path}
    setup_testing_defaults(environ)
    answer: dict[str, Any] = json.loads(b"".join(site(environ, lambda status, headers: None)))
    return answer


def main() -> int:
    with (
        tempfile.TemporaryDirectory(prefix="sync-producer-") as folder,
        Fleet("examples.sync_producer", Path(folder), "--procs", "1") as fleet,
        SyncClient(fleet.network) as client,
    ):
        site = Site(client)
        job_id = request(site, "POST", "/greet/ada")["job_id"]
        print(request(site, "GET", f"/jobs/{job_id}"))
    return fleet.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
