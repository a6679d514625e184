"""The Grafana dashboard: each expression parses, and names only metrics that exist."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from tests.support.metric_names import declared_metrics, series_names
from tests.support.prometheus_rules import (
    DASHBOARD,
    LIBRARY_SERIES,
    dashboard_expressions,
    series_of,
)
from tests.support.third_party import need, output_of


def test_every_expression_parses(tmp_path: Path) -> None:
    need("promtool")
    rules = [
        {"record": f"kernelfarm:{number}", "expr": expression}
        for number, expression in enumerate(dashboard_expressions())
    ]
    file = tmp_path / "expressions.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(rules)} rules found" in output_of("promtool", "check", "rules", str(file))


def test_expressions_name_metrics_that_exist() -> None:
    known = series_names() | LIBRARY_SERIES
    for expression in dashboard_expressions():
        assert series_of(expression) <= known, expression


def test_every_metric_is_shown() -> None:
    shown = {name for text in dashboard_expressions() for name in series_of(text)}
    for name, declared in declared_metrics().items():
        series = {f"{name}_bucket", f"{name}_count"} if declared.kind == "histogram" else {name}
        assert shown & series or name == "kernelfarm_tenant_limit_bytes", name


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    panels = json.loads(DASHBOARD.read_text())["panels"]
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (place["x"] + across, place["y"] + down)
            for across in range(place["w"])
            for down in range(place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert taken.isdisjoint(cells), panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in panels}) == len(panels)
