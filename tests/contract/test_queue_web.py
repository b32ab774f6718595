"""`istos-queue web` as a process: what browsers and other people's pages may ask of it."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.browsers import CHROMIUM, Browser
from tests.fixtures.dashboards import Web
from tests.fixtures.queue_commands import Commands


@pytest.fixture
def served(istos_queue: Commands) -> Commands:
    istos_queue.serve("--queue", "jobs/a", "--storage", "memory:", "--max-attempts", "1")
    return istos_queue


@pytest.fixture
def web(served: Commands) -> Iterator[Web]:
    dashboard = Web(served)
    yield dashboard
    dashboard.end()


def dead_letters(commands: Commands, *bodies: str) -> list[str]:
    ids = [commands.out("enqueue", "jobs/a", body, "--expires", "1ms") for body in bodies]
    while commands.json("stats", "jobs/a")["jobs/a"]["counts"]["dead"] < len(bodies):
        pass
    return ids


def test_the_page_needs_nothing_from_elsewhere_and_runs_no_other_script(web: Web) -> None:
    answer = web.get("/")
    page = answer.body.decode()

    assert answer.status == 200
    assert not re.search(r"(src|href|url)\s*[=(]\s*[\"']?(https?:)?//", page)
    assert "innerHTML" not in page
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "Access-Control-Allow-Origin" not in answer.headers


def test_queues_and_dead_letters_are_told_as_json(served: Commands, web: Web) -> None:
    (job_id,) = dead_letters(served, '{"name": "<script>alert(1)</script>"}')

    answer = web.get("/api/dead?queue=jobs/a")
    why = web.get(f"/api/why?queue=jobs/a&job_id={job_id}")

    assert web.queue("jobs/a")["dead"] == 1
    assert answer.headers["Content-Type"] == "application/json"
    (letter,) = answer.json["jobs"]
    assert (letter["job_id"], "<script>" in letter["data"]) == (job_id, True)
    assert "dead letter" in why.json["why"]


def test_an_operators_actions_work(served: Commands, web: Web) -> None:
    first, second, _ = dead_letters(served, "1", "2", "3")
    waiting = served.out("enqueue", "jobs/a", "4", "--delay", "10m")

    assert web.post("/api/requeue", {"queue": "jobs/a", "job_id": first}).json == {"requeued": 1}
    assert web.post("/api/purge", {"queue": "jobs/a", "job_id": second}).json == {"purged": 1}
    assert web.post("/api/purge", {"queue": "jobs/a", "all": True}).json == {"purged": 1}
    assert web.post("/api/cancel", {"queue": "jobs/a", "job_id": waiting}).json["ok"]
    assert web.post("/api/pause", {"queue": "jobs/a"}).json == {"paused": True}
    assert web.queue("jobs/a")["paused"] is True
    assert web.post("/api/resume", {"queue": "jobs/a"}).json == {"paused": False}
    counts = served.json("stats", "jobs/a")["jobs/a"]["counts"]
    assert (counts["ready"], counts["dead"], counts["cancelled"]) == (1, 0, 1)


def test_other_peoples_pages_get_and_change_nothing(served: Commands, web: Web) -> None:
    said = {"queue": "jobs/a"}

    rebound = [web.get(path, host="evil.example.org") for path in ("/", "/api/queues", "/api/session")]
    foreign = web.post("/api/pause", said, origin="https://evil.example.org")
    simple = web.ask("POST", "/api/pause", said, content_type="text/plain")
    guessed = web.post("/api/pause", said, x_istos_csrf="guessed")
    by_link = web.get("/api/pause?queue=jobs/a")
    preflight = web.ask("OPTIONS", "/api/pause", origin="https://evil.example.org")

    assert [one.status for one in rebound] == [421, 421, 421]
    assert (foreign.status, simple.status, guessed.status, by_link.status) == (403, 415, 403, 405)
    assert preflight.status == 405
    assert "Access-Control-Allow-Origin" not in preflight.headers
    assert served.json("stats", "jobs/a")["jobs/a"]["paused"] is False


@pytest.mark.parametrize(
    ("path", "said", "status"),
    [
        ("/api/purge", {"queue": "jobs/a"}, 400),  # all of them must be said
        ("/api/purge", {"queue": "jobs/a", "all": 1}, 400),
        ("/api/purge", {"queue": "jobs/*", "all": True}, 400),
        ("/api/cancel", {"queue": "jobs/a", "job_id": 7}, 400),
        ("/api/pause", {}, 400),
        ("/api/pause", [], 400),
        ("/api/nonsense", {}, 404),
        ("/api/../etc/passwd", {}, 404),
    ],
)
def test_what_makes_no_sense_is_refused(web: Web, path: str, said: Any, status: int) -> None:
    answer = web.post(path, said)

    assert answer.status == status
    assert answer.json["message"]


def test_an_owner_that_is_gone_is_shown_and_comes_back(served: Commands) -> None:
    dashboard = Web(served, "jobs/a", "jobs/none", "--timeout", "200ms")
    try:
        dashboard.queue("jobs/a")
        rows = dashboard.get("/api/queues").json["queues"]
        assert [row["state"] for row in rows] == ["up", "gone"]
        assert dashboard.post("/api/pause", {"queue": "jobs/none"}).status == 504
        dashboard.process.send_signal(signal.SIGTERM)
        assert dashboard.process.wait(60) == 0
    finally:
        dashboard.end()


def test_with_a_token_data_is_for_those_who_show_it(served: Commands) -> None:
    dashboard = Web(served, "--web-token", "s3cr3t", env={"ISTOS_QUEUE_LISTEN": "tcp/127.0.0.1:7447"})
    try:
        title = Path(f"/proc/{dashboard.process.pid}/cmdline").read_bytes()

        assert dashboard.get("/").status == 200
        assert dashboard.get("/livez").body == b"ok\n"
        assert dashboard.get("/api/session").status == 401
        assert dashboard.get("/api/queues", authorization="Bearer wrong").status == 401
        assert dashboard.ask("POST", "/api/pause", {"queue": "jobs/a"}).status == 401
        assert dashboard.get("/api/queues", authorization="Bearer s3cr3t").status == 200
        paused = dashboard.post("/api/pause", {"queue": "jobs/a"}, authorization="Bearer s3cr3t")
        assert paused.json == {"paused": True}
        assert b"s3cr3t" not in title
    finally:
        dashboard.end()


def test_a_dashboard_that_only_shows_changes_nothing(served: Commands) -> None:
    dashboard = Web(served, "--read-only")
    try:
        assert dashboard.get("/api/session").json["read_only"] is True
        assert dashboard.post("/api/pause", {"queue": "jobs/a"}).status == 403
    finally:
        dashboard.end()


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("--listen", "0.0.0.0:0"), 2, "--web-token-file"),
        (("--listen", "example.org:80"), 2, "token is needed"),
        (("--listen", "8080x"), 2, "HOST:PORT"),
        (("--web-token", "a b"), 2, "ASCII"),
        (("--web-token", "a", "--web-token-file", "f"), 2, "not both"),
        (("--web-token-file", "/nonexistent"), 2, "/nonexistent"),
    ],
)
def test_mistakes_are_told(istos_queue: Commands, words: tuple[str, ...], code: int, told: str) -> None:
    done = istos_queue("web", *words)

    assert (done.returncode, told in done.stderr) == (code, True), done.stderr


def test_a_port_in_use_is_told_in_one_line(served: Commands, web: Web) -> None:
    done = served.as_process("web", "--listen", f"127.0.0.1:{web.port}")

    assert done.returncode == 1
    assert "in use" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_a_browser_shows_hostile_jobs_as_text_and_its_buttons_work(
    served: Commands, web: Web, tmp_path: Path
) -> None:
    hostile = "<img src=x onerror=document.title='owned'>"
    first, second = dead_letters(served, f'"{hostile}"', "2")
    browser = Browser(tmp_path / "browser")
    try:
        browser.open(f"http://127.0.0.1:{web.port}/#jobs%2Fa")
        browser.until(f"document.querySelector('#detail')?.textContent.includes({first!r})")
        shown = browser.run("document.querySelector('#detail').textContent")
        browser.press("#detail", "purge")
        browser.until(f"!document.querySelector('#detail').textContent.includes({first!r})")
        browser.press("#detail", "requeue all")
        browser.until("document.querySelector('#said').textContent === 'requeue: requeued 1'")
        browser.press("#queues", "pause")
        browser.press("#queues", "resume")
        browser.until("document.querySelector('#said').textContent === 'resume: paused false'")

        assert hostile in shown
        assert browser.run("document.title") == "istos-queue"
        assert browser.run("document.querySelectorAll('#detail img').length") == 0
        assert browser.questions[0] == f"Forget job {first} for good?"
        assert browser.troubles == []
    finally:
        browser.close()
    assert served.json("result", "jobs/a", second)["state"] == "ready"


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_a_browser_asks_for_the_token(served: Commands, tmp_path: Path) -> None:
    dashboard = Web(served, "--web-token", "s3cr3t")
    browser = Browser(tmp_path / "browser")
    try:
        browser.open(f"http://127.0.0.1:{dashboard.port}/")
        for token in ("wrong", "s3cr3t"):
            browser.until("document.querySelector('#login').hidden === false")
            browser.run(f"document.querySelector('#login input').value = {token!r}")
            browser.press("#login", "Open")
            if token == "wrong":
                browser.until("document.querySelector('#said').textContent === 'that is not the token'")
        browser.until("document.querySelector('#login').hidden")
        browser.until("document.querySelector('#queues').textContent.includes('jobs/a')")
    finally:
        browser.close()
        dashboard.end()
