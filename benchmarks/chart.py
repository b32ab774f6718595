"""A run as one SVG of bar charts, without a plotting library. Pure: a Run in, text out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from benchmarks.figures import BY_KEY, Figure, shown
from benchmarks.results import Run, Summary, summarise

_SHOWN = ("drain_per_s", "e2e_per_s", "latency_p99_ms", "fleet_mb")
_WIDTH, _LABEL, _NUMBER = 460, 190, 74
_ROW, _BAR, _TOP, _GAP = 19, 13, 34, 20
_OURS, _THEIRS, _INK, _FAINT = "#1f6feb", "#b6bec9", "#24292f", "#57606a"
_FONT = "font-family='system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif'"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bar:
    label: str
    value: float
    ours: bool


def svg(run: Run) -> str:
    """Two by two panels, best on top."""
    summary = summarise(run.samples)
    panels = [(BY_KEY[key], _bars(run, summary, BY_KEY[key])) for key in _SHOWN]
    rows = max((len(bars) for _, bars in panels), default=1)
    height = _TOP + rows * _ROW + _GAP
    drawn = [
        f"<g transform='translate({_GAP + at % 2 * (_WIDTH + _GAP)},{_GAP + at // 2 * height})'>"
        f"{_panel(figure, bars)}</g>"
        for at, (figure, bars) in enumerate(panels)
    ]
    width, total = 2 * _WIDTH + 3 * _GAP, _GAP + 2 * height + _GAP
    machine = run.machine
    caption = f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}; {machine['date']}"
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{total}' "
        f"viewBox='0 0 {width} {total}' {_FONT} font-size='12'>"
        f"<rect width='{width}' height='{total}' rx='6' fill='#ffffff'/>{''.join(drawn)}"
        f"{_text(_GAP, total - 12, caption, fill=_FAINT, size=10)}</svg>\n"
    )


def _bars(run: Run, summary: Summary, figure: Figure) -> list[_Bar]:
    bars = [
        _Bar(label=run.systems[name].title, value=figures[figure.key].median, ours=run.systems[name].ours)
        for name, figures in summary.items()
        if figure.key in figures
    ]
    return sorted(bars, key=lambda bar: bar.value, reverse=figure.more_is_better)


def _panel(figure: Figure, bars: Sequence[_Bar]) -> str:
    which = "more is better" if figure.more_is_better else "less is better"
    title = _text(0, 12, figure.title, fill=_INK, size=14, weight="600")
    most = max((bar.value for bar in bars), default=1.0) or 1.0
    rows = [_row(_TOP + at * _ROW, bar, bar.value / most, figure.digits) for at, bar in enumerate(bars)]
    return title + _text(_WIDTH, 12, which, fill=_FAINT, size=10, anchor="end") + "".join(rows)


def _row(top: int, bar: _Bar, share: float, digits: int) -> str:
    length = max(1.0, share * (_WIDTH - _LABEL - _NUMBER))
    colour = _OURS if bar.ours else _THEIRS
    base = top + _BAR - 3
    return (
        _text(
            _LABEL - 8, base, bar.label, fill=_INK, size=11, anchor="end", weight="600" if bar.ours else "400"
        )
        + f"<rect x='{_LABEL}' y='{top}' width='{length:.1f}' height='{_BAR}' rx='2' fill='{colour}'/>"
        + _text(_LABEL + length + 6, base, shown(bar.value, digits), fill=_FAINT, size=11)
    )


def _text(
    x: float, y: float, text: str, *, fill: str, size: int, anchor: str = "start", weight: str = "400"
) -> str:
    return (
        f"<text x='{x:.1f}' y='{y}' fill='{fill}' font-size='{size}' font-weight='{weight}' "
        f"text-anchor='{anchor}'>{escape(text)}</text>"
    )
