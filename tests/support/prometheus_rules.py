"""The alert rules and the dashboard of `deploy`, and the series that their expressions name."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import yaml

from tests.support.source_code import ROOT

RULES = ROOT / "deploy" / "prometheus" / "alerts.yaml"
DASHBOARD = ROOT / "deploy" / "grafana" / "kernelfarm.json"

_SERIES = re.compile(r"\b((?:kernelfarm|process)_[a-z_]+|up)\b")
LIBRARY_SERIES = frozenset(
    {
        *("up", "process_open_fds", "process_max_fds", "process_resident_memory_bytes"),
        "process_cpu_seconds_total",
    }
)
"""Series of Prometheus and of prometheus_client that our expressions use."""


@dataclass(frozen=True)
class Alert:
    """An alert rule."""

    name: str
    expression: str
    annotations: dict[str, str]
    severity: str


def alerts() -> list[Alert]:
    """The alert rules in order."""
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return [
        Alert(rule["alert"], rule["expr"], rule["annotations"], rule["labels"]["severity"])
        for rule in group["rules"]
    ]


def dashboard_expressions() -> list[str]:
    """The expressions of the dashboard, with its variables filled in."""
    found: list[str] = []

    def visit(node: Any) -> None:
        if isinstance(node, dict):
            if "expr" in node:
                found.append(node["expr"])
            for inner in node.values():
                visit(inner)
        elif isinstance(node, list):
            for inner in node:
                visit(inner)

    visit(json.loads(DASHBOARD.read_text()))
    return [text.replace("$__rate_interval", "5m").replace("$vendor", ".*") for text in found]


def series_of(expression: str) -> set[str]:
    """The names of the series that an expression selects."""
    without_texts = re.sub(r'"[^"]*"', '""', expression)
    without_labels = re.sub(r"(by|without|on|ignoring|group_left)\s*\([^)]*\)", "", without_texts)
    return set(_SERIES.findall(without_labels))
