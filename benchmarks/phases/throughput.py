"""Jobs a second: into the queue, out of it, and both at once."""

from __future__ import annotations

from benchmarks.phases.phase import Measured, rate, span_s, tally
from benchmarks.record import Kind
from benchmarks.rig import Rig


def enqueue(rig: Rig) -> Measured:
    """Each way the client has; no worker runs meanwhile. Afterwards a fleet proves that every job is there."""
    plan, pace = rig.plan, rig.system.pace
    ways = rig.system.ways
    most = max(1000, int(pace.drain * plan.seconds / len(ways)))
    rig.reset()
    figures, sent = {}, 0
    for way in ways:
        jobs = plan.jobs(pace.of(way), seconds=plan.seconds / 2, least=100, most=most)
        report = rig.produce("enqueue", "--jobs", jobs, "--first", sent, "--way", way)
        figures[f"enqueue_{way}_per_s"] = report["per_s"]
        sent += jobs
    with rig.fleet():
        rig.wait_for(sent)
    count = tally(rig.records.read(Kind.DONE), sent)
    return Measured(figures=figures, lost=count.lost, duplicated=count.duplicated)


def drain(rig: Rig) -> Measured:
    """A full queue, then a fleet: from the first job's record to the last one's."""
    jobs = rig.plan.jobs(rig.system.pace.drain)
    rig.reset()
    rig.fill(jobs)
    with rig.fleet():
        rig.wait_for(jobs)
        records = rig.records.read(Kind.DONE)
    count = tally(records, jobs)
    figures = {"drain_per_s": rate(jobs - count.lost, span_s(records))}
    return Measured(figures=figures, lost=count.lost, duplicated=count.duplicated)


def end_to_end(rig: Rig) -> Measured:
    """A warm fleet and a producer with 16 enqueues in flight (one where the client blocks): from the first
    enqueue to the last job. The CPU is that of the whole fleet, and of the broker beside it.
    """
    plan = rig.plan
    jobs = plan.jobs(rig.system.pace.drain / 2)
    rig.reset()
    with rig.fleet() as fleet:
        rig.settle(plan.procs)
        fleet_s, broker_s = fleet.cpu_s(), rig.broker.cpu_s()
        with rig.producing("enqueue", "--jobs", jobs, "--way", rig.at_once()) as producer:
            rig.wait_for(jobs)
            fleet_s, broker_s = fleet.cpu_s() - fleet_s, rig.broker.cpu_s() - broker_s
            report = rig.report(producer)
        records = rig.records.read(Kind.DONE)
    count = tally(records, jobs)
    ended_ns = max((record.at_ns for record in records), default=0)
    figures = {
        "e2e_per_s": rate(jobs - count.lost, (ended_ns - report["begun_ns"]) / 1e9),
        "e2e_enqueue_per_s": report["per_s"],
        "worker_cpu_us": fleet_s / jobs * 1e6,
        "broker_cpu_us": broker_s / jobs * 1e6,
    }
    return Measured(figures=figures, lost=count.lost, duplicated=count.duplicated)
