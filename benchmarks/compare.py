"""Two runs of the same commit: which figures lie outside each other's spread. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.results import Run, Spread, summarise

SLACK = 0.10
"""Three repeats understate a spread, so each is taken this much wider."""


def disagreements(first: Run, second: Run) -> list[str]:
    return [
        f"{system} {figure}: {one.median:,.4g} ({one.low:,.4g} to {one.high:,.4g}) then "
        f"{other.median:,.4g} ({other.low:,.4g} to {other.high:,.4g})"
        for system, figure, one, other in _pairs(first, second)
        if not _widened(one).overlaps(_widened(other))
    ]


def _pairs(first: Run, second: Run) -> Iterator[tuple[str, str, Spread, Spread]]:
    ones, others = summarise(first.samples), summarise(second.samples)
    for system, figures in ones.items():
        for figure, spread in figures.items():
            if other := others.get(system, {}).get(figure):
                yield system, figure, spread, other


def _widened(spread: Spread) -> Spread:
    return Spread(
        median=spread.median,
        low=spread.low * (1 - SLACK),
        high=spread.high * (1 + SLACK),
        samples=spread.samples,
    )
