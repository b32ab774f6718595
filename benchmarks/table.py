"""A run as one Markdown page. Pure: a Run in, text out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.figures import BY_KEY, COMMON, COST, Figure, shown
from benchmarks.results import Run, Spread, Summary, findings, summarise, violations
from benchmarks.targets import BACKLOG_LIMIT, DURABLE, MEMORY, TARGETS, Goal, Verdict, judge

_NONE = "–"


def page(run: Run) -> str:
    summary = summarise(run.samples)
    parts = [
        _heading(run),
        "## Systems\n\n" + _systems(run),
        "## Throughput and start latency\n\n" + _figures(run, summary, COMMON),
        "## Cost, memory, faults\n\n" + _figures(run, summary, COST),
        "## Against the targets\n\n" + _targets(run, summary),
        "## This project alone\n\n" + _ours(run, summary),
        "## Lost, repeated, skipped\n\n" + _lines([*_failures(run), *findings(run), *_skipped(run)]),
    ]
    return "\n\n".join(parts) + "\n"


def _heading(run: Run) -> str:
    plan, machine = run.plan, run.machine
    sizes = f"{plan['procs']} worker processes of {plan['slots']} slots, one producer process"
    return (
        f"# Measured {machine['date']}\n\n"
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory']}; {machine['kernel']}; Python "
        f"{machine['python']}; commit {machine['commit']}. {sizes}; a no-op job of about 100 bytes; medians of "
        f"{plan['repeat']} (lowest to highest), systems alternating; about {plan['seconds']:g} s a measurement. "
        "MB are proportional set size of the whole process tree."
    )


def _systems(run: Run) -> str:
    rows = [
        [
            system.title,
            ", ".join(f"{package} {version}" for package, version in system.versions.items()),
            system.policy,
        ]
        for system in run.systems.values()
    ]
    return _table(["system", "versions", "an answered enqueue is"], rows)


def _figures(run: Run, summary: Summary, figures: Sequence[Figure]) -> str:
    rows = []
    for name, system in run.systems.items():
        found = summary.get(name, {})
        cells = [_cell(found.get(figure.key), figure.digits) for figure in figures]
        rows.append([f"{system.title} ({system.policy})", *cells])
    return _table(["system (its sync policy)", *(figure.title for figure in figures)], rows)


def _targets(run: Run, summary: Summary) -> str:
    head = ["figure"]
    for store in ("memory", "SQLite"):
        head += [store, f"{store}: against", "target", "met"]
    rows = []
    for target in TARGETS:
        figure = BY_KEY[target.key]
        row = [figure.title]
        for system in (MEMORY, DURABLE):
            row += _verdict(judge(summary, run.systems, target, system), figure.digits)
        rows.append(row)
    return _table(head, rows)


def _verdict(verdict: Verdict, digits: int) -> list[str]:
    against = f"{verdict.ratio:.2f} x {verdict.rival}" if verdict.ratio is not None else _NONE
    met = {True: "yes", False: "**no**", None: "?"}[verdict.met]
    return [_cell(verdict.value, digits), against, _goal(verdict.goal), met]


def _goal(goal: Goal) -> str:
    if goal.ratio is not None:
        return f"{goal.ratio:g} x {goal.rival or 'the best peer'}"
    return f"{goal.limit:g}"


def _ours(run: Run, summary: Summary) -> str:
    """Every figure of ours that is in no other table, one row each."""
    names = [name for name, system in run.systems.items() if system.ours]
    keys = dict.fromkeys(key for name in names for key in summary.get(name, {}) if key not in BY_KEY)
    rows = [[key, *(_own_cell(summary.get(name, {}).get(key)) for name in names)] for key in keys]
    text = _table(["figure", *(run.systems[name].title for name in names)], rows)
    legend = f"`backlog_cpu_ratio`: CPU of a job, longest backlog against shortest; target {BACKLOG_LIMIT}."
    return f"{text}\n\n{legend}"


def _own_cell(spread: Spread | None) -> str:
    return _cell(spread, 2 if spread and abs(spread.median) < 100 else 0)


def _cell(spread: Spread | None, digits: int) -> str:
    if spread is None:
        return _NONE
    text = shown(spread.median, digits)
    if spread.samples > 1 and spread.high > spread.low:
        text += f" ({shown(spread.low, digits)} to {shown(spread.high, digits)})"
    return text


def _failures(run: Run) -> list[str]:
    return [f"**fails the run**: {text}" for text in violations(run)]


def _skipped(run: Run) -> list[str]:
    return [f"{name}: skipped, {reason}" for name, reason in run.skipped.items()]


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines) or "Nothing."


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)
