"""Chains, chords, barriers (CONTRACT.md section 4, rule 10)."""

from __future__ import annotations

import base64
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from istos_worker.queue.records import ClaimRequest, Delivery, InvalidChordError, JobRef, NewJob
from tests.unit.queue.fakes import Bench, ref


def encoded(wf: dict[str, Any]) -> str:
    return base64.b64encode(orjson.dumps(wf)).decode()


def chain(*prefixes: str) -> str:
    return encoded({"chain": [{"prefix": prefix} for prefix in prefixes]})


def member(index: int, size: int, *, prefix: str = "jobs/q", **more: Any) -> str:
    callback = {"prefix": prefix, "data": base64.b64encode(b'{"in":1}').decode()}
    return encoded({"chord": {"id": "c1", "index": index, "size": size, "callback": callback, **more}})


def b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def finish(bench: Bench, result: bytes | None, **claim: Any) -> str:
    """Runs the next job."""
    delivery = bench.take(**claim)
    assert bench.state.ack(ref(delivery), bench.now, result=result, advance=True).ok
    bench.turn()
    return delivery.job_id


def test_a_chain_s_next_step_gets_the_result_under_a_derived_id() -> None:
    bench = Bench()
    bench.add(job_id="one", wf=chain("jobs/q", "jobs/q"), correlation_id="cid", priority=3)
    finish(bench, b'"r1"')

    step = bench.take()
    assert (step.job_id, step.body, step.correlation_id, step.job.priority) == ("one.next", b'"r1"', "cid", 3)
    bench.state.ack(ref(step), bench.now, result=b'"r2"', advance=True)
    bench.turn()
    last = bench.take()
    assert (last.job_id, last.body, last.wf) == ("one.next.next", b'"r2"', None)


def test_a_peer_s_ack_advances_nothing() -> None:
    bench = Bench()
    bench.add(wf=chain("jobs/q"))
    bench.state.ack(ref(bench.take()), bench.now, result=b"1")

    assert bench.claim() == []


def test_a_repeated_ack_advances_once() -> None:
    bench = Bench()
    bench.add(job_id="one", wf=chain("jobs/q"))
    delivery = bench.take()
    for _ in range(3):
        assert bench.state.ack(ref(delivery), bench.now, result=b"1", advance=True).ok
        bench.turn()
        bench.restart()

    assert bench.counts() == {"ready": 1}


def test_a_long_chain_s_ids_stay_valid() -> None:
    bench = Bench()
    bench.add(job_id="x" * 60, wf=chain(*["jobs/q"] * 40))
    for _ in range(40):
        finish(bench, b"1")

    (last,) = bench.claim()
    assert len(last.job_id) <= 64


def test_a_step_for_another_queue_is_kept_until_that_owner_has_it() -> None:
    bench = Bench()
    bench.add(job_id="one", wf=chain("jobs/other", "jobs/q"))
    finish(bench, b'"r"')
    (outgoing,) = bench.effects[-1].outgoing
    assert (outgoing.prefix, outgoing.job.job_id, outgoing.job.body) == ("jobs/other", "one.next", b'"r"')

    bench.restart()
    (again,) = bench.turn().outgoing
    assert again == outgoing
    bench.state.sent(again.note_id, bench.now)
    bench.turn()
    bench.restart()

    assert bench.turn().outgoing == []


def test_a_workflow_that_cannot_be_read_keeps_no_job_from_being_done() -> None:
    for wf in ("???", encoded([]), encoded({"chain": 7}), encoded({"chord": {"id": 1}}), member(9, 2)):  # type: ignore[arg-type]
        bench = Bench()
        bench.add(wf=wf)
        finish(bench, b"1")
        assert bench.counts() == {}


def test_a_chord_calls_back_once_with_results_in_member_order() -> None:
    bench = Bench()
    for index in range(3):
        bench.add(job_id=f"m{index}", wf=member(index, 3))
    deliveries = bench.claim(3)
    for delivery, result in zip(reversed(deliveries), (b'"r2"', None, b"not json"), strict=True):
        assert bench.state.ack(ref(delivery), bench.now, result=result, advance=True).ok
        bench.turn()
        bench.restart()

    callback = bench.take()
    assert callback.job_id == "c1.cb"
    assert orjson.loads(callback.body) == {"results": ["not json", None, "r2"], "input": {"in": 1}}


def test_a_callback_for_another_queue_goes_out() -> None:
    bench = Bench()
    bench.add(wf=member(0, 1, prefix="jobs/reduce"))
    finish(bench, b"5")

    (outgoing,) = bench.effects[-1].outgoing
    assert (outgoing.prefix, outgoing.job.job_id) == ("jobs/reduce", "c1.cb")
    assert outgoing.job.body == b'{"results":[5],"input":{"in":1}}'


def test_results_of_a_chord_outlive_the_results_time() -> None:
    bench = Bench(result_ttl_s=10, keep_results=True)
    for index in range(2):
        bench.add(wf=member(index, 2))
    finish(bench, b"1")
    bench.sleep(86400)
    bench.restart(down_s=86400)

    finish(bench, b"2")

    assert orjson.loads(bench.take().body)["results"] == [1, 2]


def test_a_closed_chord_leaves_no_reports_behind() -> None:
    bench = Bench(result_ttl_s=10)
    for index in range(20):
        bench.add(wf=member(index, 20))
    for _ in range(20):
        finish(bench, b'"' + b"x" * 1000 + b'"')
    bench.state.ack(ref(bench.take()), bench.now)
    bench.turn()
    bench.sleep(601)

    assert bench.medium.rows_by_seq == {}


def test_a_report_counts_each_member_once_and_completes_for_the_last() -> None:
    bench = Bench()
    assert bench.state.report("c", 0, 2, b64(b"0"), bench.now) is None
    assert bench.state.report("c", 0, 2, b64(b"again"), bench.now) is None
    bench.turn()
    bench.restart()

    assert bench.state.report("c", 1, 2, None, bench.now) == [b64(b"0"), None]


def test_a_repeat_by_the_completing_member_completes_again_and_by_others_does_not() -> None:
    bench = Bench()
    bench.state.report("c", 0, 2, b64(b"0"), bench.now)
    done = bench.state.report("c", 1, 2, b64(b"1"), bench.now)
    bench.turn()
    bench.restart()

    assert bench.state.report("c", 1, 2, b64(b"1"), bench.now) == done
    assert bench.state.report("c", 0, 2, b64(b"0"), bench.now) is None


def test_the_results_a_peer_was_given_are_dropped_with_its_ack() -> None:
    bench = Bench()
    bench.add(wf=member(0, 1))
    delivery = bench.take()
    assert bench.state.report("c1", 0, 1, b64(b"0"), bench.now) == [b64(b"0")]
    bench.state.ack(ref(delivery), bench.now, result=b"0")
    bench.turn()

    assert bench.state.report("c1", 0, 1, b64(b"0"), bench.now) is None
    assert bench.counts() == {}


def test_a_peer_that_dies_between_report_and_callback_is_followed_up_by_any_worker() -> None:
    bench = Bench()
    bench.add(wf=member(0, 1))
    bench.take(worker="peer", seq=1)
    bench.state.report("c1", 0, 1, b64(b"0"), bench.now)
    bench.state.bury("peer", "SIGKILL", None, bench.now)
    bench.turn()
    bench.restart()

    finish(bench, b"0")

    assert bench.take().job_id == "c1.cb"


def test_members_of_both_kinds_of_worker_make_one_chord() -> None:
    bench = Bench()
    bench.add(wf=member(1, 2))
    bench.state.report("c1", 0, 2, b64(b'"peer"'), bench.now)

    finish(bench, b'"ours"')

    assert orjson.loads(bench.take().body)["results"] == ["peer", "ours"]


def test_reports_come_back_as_they_were_also_when_they_are_no_base64() -> None:
    bench = Bench()
    bench.state.report("c", 0, 2, "r0", bench.now)
    bench.turn()
    bench.restart()

    assert bench.state.report("c", 1, 2, "r-1", bench.now) == ["r0", "r-1"]


@pytest.mark.parametrize(("index", "size"), [(-1, 2), (2, 2), (0, 0), (0, -1), (0, 2_000_000)])
def test_a_report_that_does_not_fit_is_refused(index: int, size: int) -> None:
    with pytest.raises(InvalidChordError):
        Bench().state.report("c", index, size, None, Bench().now)
    assert issubclass(InvalidChordError, ValueError)


def kill_member(bench: Bench) -> str:
    delivery = bench.take()
    bench.state.nack(ref(delivery), bench.now, error="boom", discard=True)
    bench.turn()
    return delivery.job_id


def test_a_chord_waits_for_a_dead_member_and_goes_on_when_it_is_requeued() -> None:
    bench = Bench()
    for index in range(2):
        bench.add(wf=member(index, 2))
    dead = kill_member(bench)
    finish(bench, b"1")
    assert bench.counts() == {"dead": 1}
    assert bench.state.why("c1.cb", bench.now).why == "waits for chord member 0 of 2"

    bench.state.requeue(dead, bench.now)
    finish(bench, b"0")

    assert orjson.loads(bench.take().body)["results"] == [0, 1]


def test_a_chord_that_collects_calls_back_with_the_errors() -> None:
    bench = Bench()
    for index in range(2):
        bench.add(wf=member(index, 2, on_failure="collect"))
    finish(bench, b"1")
    dead = kill_member(bench)

    assert orjson.loads(bench.take().body)["results"] == [1, {"error": "boom", "job_id": dead}]


def test_a_chord_that_fails_leaves_its_callback_among_the_dead() -> None:
    bench = Bench()
    for index in range(3):
        bench.add(wf=member(index, 3, on_failure="fail"))
    finish(bench, b"0")
    kill_member(bench)
    finish(bench, b"2")

    letters = {one.job_id: one.last_error for one in bench.state.dead_letters().jobs}
    assert letters["c1.cb"] == "chord member 1 failed: boom"
    assert bench.counts() == {"dead": 2}


def test_a_cancelled_member_counts_as_a_failed_one() -> None:
    bench = Bench()
    job_id = bench.state.enqueue(NewJob(body=b"1", wf=member(0, 1, on_failure="collect")), bench.now).job_id
    bench.state.cancel(job_id, bench.now)

    assert orjson.loads(bench.take().body)["results"] == [{"error": "cancelled", "job_id": job_id}]


class ChordRun:
    """A chord under a script of good and bad luck; every step claims a job and does something with it."""

    def __init__(self, size: int, prefix: str) -> None:
        self.bench = Bench(max_attempts=100, crash_budget=100, lease_s=10)
        self.callbacks: list[bytes] = []
        self.sent: dict[str, bytes] = {}
        self._last: JobRef | None = None
        for index in range(size):
            self.bench.add(b"%d" % index, job_id=f"m{index}", wf=member(index, size, prefix=prefix))

    def step(self, what: str) -> None:
        found = self.bench.state.claim(ClaimRequest(), self.bench.now)
        assert isinstance(found, list)
        if what == "expire":
            self.bench.sleep(11)
        elif what == "crash":
            self.bench.restart()
        elif what == "repeat":
            if self._last is not None:
                self.bench.state.ack(self._last, self.bench.now, result=b"9", advance=True)
        elif found:
            getattr(self, what)(found[0])
        for one in self.bench.turn().outgoing:
            self.sent[str(one.job.job_id)] = one.job.body

    def work(self, delivery: Delivery) -> None:
        self._last = ref(delivery)
        outcome = self.bench.state.ack(self._last, self.bench.now, result=delivery.body, advance=True)
        if outcome.ok and delivery.job_id == "c1.cb":
            self.callbacks.append(delivery.body)

    def lose(self, delivery: Delivery) -> None:
        """The ack is heard, but its turn never becomes durable."""
        self.bench.state.ack(ref(delivery), self.bench.now, result=delivery.body, advance=True)
        self.bench.restart()

    def fail(self, delivery: Delivery) -> None:
        self.bench.state.nack(ref(delivery), self.bench.now, error="x")


steps = st.lists(
    st.sampled_from(["work", "work", "work", "crash", "lose", "repeat", "fail", "expire"]), max_size=40
)


@settings(max_examples=200, deadline=None)
@given(size=st.integers(1, 4), script=steps, own=st.booleans())
def test_whatever_crashes_a_chord_calls_back_exactly_once(size: int, script: list[str], own: bool) -> None:
    run = ChordRun(size, "jobs/q" if own else "jobs/other")
    for what in script:
        run.step(what)
    for _ in range(3 * size + 3):
        run.bench.sleep(11)
        run.step("work")

    bodies = run.callbacks if own else list(run.sent.values())
    assert [orjson.loads(body)["results"] for body in bodies] == [list(range(size))]
    assert run.bench.counts() == {}


def test_why_tells_of_a_complete_chord_whose_callback_a_peer_s_worker_is_to_enqueue() -> None:
    bench = Bench()
    bench.state.report("c1", 0, 2, "MQ==", bench.now)
    waits = bench.state.why("c1.cb", bench.now).why
    bench.state.report("c1", 1, 2, "Mg==", bench.now)
    complete = bench.state.why("c1.cb", bench.now).why

    assert waits == "waits for chord member 1 of 2"
    assert complete == "all 2 members of its chord are done; the worker of member 1 is to enqueue it"


def refused(bench: Bench) -> str:
    """A chain's next step that the other queue will not have."""
    bench.add(job_id="one", wf=chain("jobs/other", "jobs/third"), priority=3, correlation_id="cid")
    finish(bench, b'"r1"')
    [outgoing] = bench.effects[-1].outgoing
    bench.state.refused(outgoing.note_id, "payload_too_large: 9 bytes", bench.now)
    bench.turn()
    return "one.next"


def test_a_continuation_that_its_queue_refuses_for_good_becomes_a_dead_letter() -> None:
    bench = Bench()
    job_id = refused(bench)
    bench.restart()

    [letter] = bench.state.dead_letters().jobs
    assert (letter.job_id, letter.body) == (job_id, b'"r1"')
    assert letter.last_error == "queue jobs/other refused it: payload_too_large: 9 bytes"
    assert bench.turn().outgoing == []


def test_requeued_it_goes_to_its_own_queue() -> None:
    bench = Bench()
    job_id = refused(bench)
    bench.restart()

    assert bench.state.requeue(job_id, bench.now) == 1
    [outgoing] = bench.turn().outgoing
    bench.restart()

    assert (outgoing.prefix, outgoing.job.job_id, outgoing.job.body) == ("jobs/other", job_id, b'"r1"')
    assert (outgoing.job.priority, outgoing.job.correlation_id) == (3, "cid")
    assert outgoing.job.wf == chain("jobs/third")
    assert bench.state.dead_letters().jobs == []
    assert bench.claim() == []
