"""Renders figures in the Prometheus text format. Pure; small enough that the supervisor needs no library for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    name: str
    kind: str
    help: str
    samples: Sequence[tuple[Mapping[str, str], float]] = field(default_factory=tuple)


def render(metrics: Sequence[Metric]) -> str:
    return "".join(_render_one(metric) for metric in metrics)


def _render_one(metric: Metric) -> str:
    lines = [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]
    lines += [f"{metric.name}{_labels(labels)} {value:.15g}" for labels, value in metric.samples]
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
