"""kill -9 of an owner at random moments under load: what it has acknowledged is there afterwards, all of it, and
nothing is both lost and acknowledged.

ISTOS_CRASH_ROUNDS says how many kills (10 in the suite), ISTOS_CRASH_SEED which ones.
"""

from __future__ import annotations

import asyncio
import base64
import os
import random
import socket
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import orjson
import pytest

from istos_worker.wire.codec import encode_params
from istos_worker.wire.keys import worker_key
from istos_worker.wire.session import Handle, Session
from istos_worker.wire.settings import ZenohSettings
from tests.fixtures.live import Raw, free_endpoint, until
from tests.fixtures.owners import Owners
from tests.fixtures.programs import LONG_S, Program
from tests.fixtures.told import CHORD_SIZE, Chord, Job, Told

pytestmark = [pytest.mark.crash, pytest.mark.usefixtures("way")]

ROUNDS = int(os.environ.get("ISTOS_CRASH_ROUNDS", "10"))
QUEUE = "jobs/a"
PRODUCERS, WORKERS = 3, 3
LONG_DELAY_S = 86400.0
ANSWER_S = 10.0


def _is_open(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


class OwnerGone(Exception):  # noqa: N818 - news, not a failure
    """The owner died before it answered."""


class Caller:
    """Asks one owner until it dies, and repeats to the next one what was left without an answer."""

    def __init__(self, told: Told, rng: random.Random, network: ZenohSettings) -> None:
        self.told = told
        self.rng = rng
        self.open: dict[int, tuple[str, str, bytes | None, dict[str, Any]]] = {}
        """Requests without an answer, by their number. There may be two of a kind about one job: it may come to a
        worker, and be done or fail again, before its enqueue or its first failure is answered."""
        self._requests = 0
        self._network = network
        self.owner: Program | None = None
        self._session: Session | None = None
        self._tokens: list[Handle] = []
        self._seqs = dict.fromkeys(range(WORKERS), 0)
        self._names = 0

    @property
    def raw(self) -> Raw:
        assert self._session is not None
        return Raw(self._session, QUEUE)

    async def connect(self, owner: Program) -> None:
        self.owner = owner
        host, port = self._network.connect[0].removeprefix("tcp/").split(":")

        async def is_open() -> bool:
            return _is_open(host, int(port))

        async def is_there() -> bool:
            return await session.ask(f"{QUEUE}/info", timeout_s=ANSWER_S) is not None

        await until(is_open, within_s=LONG_S)  # a client that finds nobody looks again only a second later
        self._session = session = await Session.open(self._network)
        await until(is_there, within_s=LONG_S)
        keys = [worker_key(QUEUE, f"w{number}") for number in range(WORKERS)]
        self._tokens = [session.declare_token(key) for key in keys]  # kept, or they end at once

    async def disconnect(self) -> None:
        assert self._session is not None
        await self._session.aclose()

    async def ask(
        self, about: str, verb: str, payload: bytes | None = None, **params: object
    ) -> dict[str, Any]:
        """Raises OwnerGone when there is no answer; the request stays open then."""
        assert self._session is not None
        self._requests = number = self._requests + 1
        self.open[number] = (verb, about, payload, params)
        try:
            answer = await self._session.ask(
                f"{QUEUE}/{verb}", encode_params(params), payload=payload, timeout_s=ANSWER_S
            )
        except TimeoutError:  # a query on its way while the connection broke
            assert self.owner is not None
            assert self.owner.process.poll() is not None, f"{verb} got no answer from an owner that lives"
            answer = None
        if answer is None:
            raise OwnerGone
        del self.open[number]
        reply = orjson.loads(answer)
        assert isinstance(reply, dict)
        assert "__istos_error" not in reply, f"{verb} {params}: {reply}"
        return reply

    # producers

    async def produce(self) -> None:
        while True:
            match self.rng.randrange(10):
                case 0:
                    await self._enqueue_many()
                case 1 | 2:
                    await self._enqueue_chord()
                case 3 | 4:
                    await self._enqueue(self._job(delay_s=self.rng.choice((0.05, 0.4, LONG_DELAY_S))))
                case _:
                    await self._enqueue(self._job())

    def _job(self, **story: Any) -> Job:
        self._names += 1
        job = Job(f"j{self._names}", asked_at=time.monotonic(), **story)
        self.told.jobs[job.id] = job
        return job

    async def _enqueue(self, job: Job, **params: object) -> None:
        if job.delay_s:
            params["delay"] = job.delay_s
        body = b'{"n":"%s"}' % job.id.encode() * self.rng.choice((1, 1, 1, 400))
        priority = self.rng.randrange(3)
        await self.ask(job.id, "enqueue", body, job_id=job.id, priority=priority, **params)
        self.told.enqueued(job.id)

    async def _enqueue_chord(self) -> None:
        self._names += 1
        chord_id = f"c{self._names}"
        self.told.chords[chord_id] = Chord()
        callback = {"prefix": QUEUE, "data": base64.b64encode(b'"in"').decode()}
        for index in range(CHORD_SIZE):
            part = {"id": chord_id, "index": index, "size": CHORD_SIZE, "callback": callback}
            wf = base64.b64encode(orjson.dumps({"chord": part})).decode()
            await self._enqueue(self._job(chord=chord_id, index=index), wf=wf)

    async def _enqueue_many(self) -> None:
        self._names += 1
        base = f"b{self._names}"
        jobs = [Job(f"{base}.{index}", asked_at=time.monotonic()) for index in range(4)]
        self.told.jobs.update({job.id: job for job in jobs})
        await self.ask(base, "enqueue_many", b"[1,2,3,4]", job_id=base)
        for job in jobs:
            self.told.enqueued(job.id)

    # workers

    async def work(self, number: int) -> None:
        while True:
            for job in await self._claim(number):
                await self._settle(job)

    async def _claim(self, number: int) -> list[Job]:
        self._seqs[number] += 1
        params = {"worker": f"w{number}", "seq": self._seqs[number], "n": self.rng.choice((1, 4))}
        return await self._claimed(f"w{number}", {**params, "wait": 0.05})

    async def _claimed(self, about: str, params: dict[str, Any]) -> list[Job]:
        asked_at = time.monotonic()
        reply = await self.ask(about, "claim", **params)
        return [self.told.delivered(job, asked_at) for job in reply["jobs"]]

    async def _settle(self, job: Job) -> None:
        has_reported = job.chord is not None and job.index in self.told.chords[job.chord].reported
        match self.rng.randrange(10):
            case 0:
                params: dict[str, Any] = {"job_id": job.id, "fence": job.fence}
                await self.ask(job.id, "release", **params)
                self._let_go(job, params)
                self.told.count("released")
            case 1:
                await self._nack(job)
            case 2 if job.chord is None:
                await self._nack(job, discard=1)
            case 3 if job.chord is not None and not has_reported:
                await self._report(job)
            case _:
                await self.ack(job)

    async def _nack(self, job: Job, **params: object) -> None:
        job.trying, job.text = "dead", f"failed under {job.fence}"
        params = {"job_id": job.id, "fence": job.fence, "retry_after": 0, **params}
        reply = await self.ask(job.id, "nack", job.text.encode(), **params)
        assert reply["ok"], f"nack of {job.id}: {reply}"
        self._nacked(job, params, reply)

    def _nacked(self, job: Job, params: dict[str, Any], reply: dict[str, Any]) -> None:
        if reply["disposition"] == "dead":
            self.told.ended(job, "dead")
        else:
            self._let_go(job, params)
            self.told.count("nacked")

    def _let_go(self, job: Job, params: dict[str, Any]) -> None:
        """Unless it has been delivered again, before the answer to what let it go."""
        if job.fence == params["fence"]:
            job.is_held, job.trying = False, None

    async def ack(self, job: Job, *, advance: bool = True) -> None:
        job.trying, job.text = "done", orjson.dumps(job.id).decode()
        if advance and job.chord is not None:
            self.told.chords[job.chord].trying.add(job.index)
        params = {"job_id": job.id, "fence": job.fence, "advance": int(advance)}
        reply = await self.ask(job.id, "ack", job.text.encode(), **params)
        self._acked(job, reply, advanced=advance)

    def _acked(self, job: Job, reply: dict[str, Any], *, advanced: bool) -> None:
        assert reply == {"ok": True}, f"ack of {job.id}: {reply}"
        self.told.ended(job, "done")
        if advanced and job.chord is not None:
            self.told.reported(job.chord, job.index)

    async def _report(self, job: Job) -> None:
        """As a peer's worker does before its ack, but that what follows a complete chord is left to the owner."""
        assert job.chord is not None
        self.told.chords[job.chord].trying.add(job.index)
        result = base64.b64encode(orjson.dumps(job.id))
        params = {"chord_id": job.chord, "index": job.index, "size": CHORD_SIZE}
        reply = await self.ask(f"{job.chord} {job.index}", "chord", result, **params)
        self.told.reported(job.chord, job.index)
        await self.ack(job, advance=reply["complete"])

    # after a kill

    async def go_on(self) -> None:
        """Repeats every request that was left without an answer, as it was; then finishes what is still held, under
        the fences of before the kill."""
        for number, (verb, about, payload, params) in list(self.open.items()):
            del self.open[number]
            self.told.count(f"repeated {verb}")
            if verb == "claim":
                await self._claimed(about, params)
                continue
            reply = await self.ask(about, verb, payload, **params)
            try:
                self._repeated(verb, params, reply)
            except AssertionError as failed:
                failed.add_note(f"{params}: {await self.raw('why', job_id=params['job_id'])}")
                raise
        for job in [job for job in self.told.jobs.values() if job.is_held]:
            await self.ack(job)

    def _repeated(self, verb: str, params: dict[str, Any], reply: dict[str, Any]) -> None:
        jobs = self.told.jobs
        match verb:
            case "enqueue":
                self.told.enqueued(params["job_id"])
            case "enqueue_many":
                for job_id in reply["job_ids"]:
                    self.told.enqueued(job_id)
            case "ack":
                self._acked(jobs[params["job_id"]], reply, advanced=bool(params["advance"]))
            case "chord":
                self.told.reported(params["chord_id"], params["index"])
            case _ if reply.get("stale"):  # it had happened
                job = jobs[params["job_id"]]
                if "discard" in params:
                    self.told.ended(job, "dead")
                elif job.fence == params["fence"]:
                    job.is_held = False
            case "nack":
                self._nacked(jobs[params["job_id"]], params, reply)
            case _:
                assert reply["ok"], f"repeated {verb} {params}: {reply}"
                self._let_go(jobs[params["job_id"]], params)

    async def finish(self) -> None:
        """Everything that can be done is done."""
        await asyncio.sleep(0.5)  # the short delays
        for number in range(WORKERS):
            while jobs := await self._claim(number):
                for job in jobs:
                    await self.ack(job)


async def run_until_killed(caller: Caller, owner: Program, after_s: float) -> None:
    loads: list[Coroutine[Any, Any, None]] = [caller.produce() for _ in range(PRODUCERS)]
    loads += [caller.work(number) for number in range(WORKERS)]
    tasks = [asyncio.create_task(load) for load in loads]
    await asyncio.sleep(after_s)
    owner.process.kill()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    owner.process.wait()
    for end in ends:
        if not isinstance(end, OwnerGone):
            raise end if isinstance(end, BaseException) else AssertionError("a load ended by itself")


async def check_all(caller: Caller, jobs: list[Job]) -> None:
    told = caller.told
    await told.check(caller.raw, jobs)
    await told.check_chords(caller.raw, {job.chord: None for job in jobs if job.chord is not None})
    await told.check_dead(caller.raw)


def recent(told: Told, rng: random.Random) -> list[Job]:
    """What the last round was about, and some of what was before."""
    jobs = list(told.jobs.values())
    return [*jobs[-300:], *rng.sample(jobs[:-300], min(50, max(0, len(jobs) - 300)))]


def assert_every_story_ended(told: Told) -> None:
    for job in told.jobs.values():
        is_over = job.end is not None or job.delay_s == LONG_DELAY_S
        assert is_over or job.told_at is None, f"{job.id} was accepted and is lost"
    for chord_id, chord in told.chords.items():
        if len(chord.reported) < CHORD_SIZE:
            continue
        members = [job.id for job in told.jobs.values() if job.chord == chord_id]
        results = told.called_back.get(f"{chord_id}.cb", [])
        assert results, f"{chord_id} is complete and was not called back"
        assert all(one == members for one in results), f"{chord_id} was called back with {results}"


async def test_what_was_acknowledged_outlives_kills_at_any_moment(owner: Owners, tmp_path: Path) -> None:
    seed = int(os.environ.get("ISTOS_CRASH_SEED", random.randrange(2**32)))
    rng = random.Random(seed)
    endpoint = free_endpoint()
    caller = Caller(
        told := Told(), rng, ZenohSettings(connect=(endpoint,), namespace=owner.network.namespace)
    )

    def start() -> Program:
        storage = f"sqlite:///{tmp_path}/queues.db"
        arguments = ("--keep-results", "--listen", endpoint, "--scouting", "off")
        return owner.start(QUEUE, storage=storage, arguments=arguments)

    try:
        for _ in range(ROUNDS):
            serving = start()
            while rng.random() < 0.15:  # while it starts
                await asyncio.sleep(rng.random() * 0.6)
                serving.end()
                serving = start()
            await caller.connect(serving)
            told.restarted()
            await check_all(caller, recent(told, rng))
            await caller.go_on()
            await run_until_killed(caller, serving, after_s=rng.random() * 0.4)
            await caller.disconnect()
        await caller.connect(start())
        told.restarted()
        await check_all(caller, list(told.jobs.values()))
        await caller.go_on()
        await caller.finish()
        await check_all(caller, list(told.jobs.values()))
        await caller.disconnect()
        assert_every_story_ended(told)
    except BaseException as failed:
        failed.add_note(f"ISTOS_CRASH_SEED={seed}")
        raise
    print(f"{ROUNDS} kills, seed {seed}: {told.counts}")
