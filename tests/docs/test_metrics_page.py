"""Each metric of the code is on the page with its labels, and nothing else is."""

from __future__ import annotations

from prometheus_client.metrics import MetricWrapperBase

from kernelfarm.service.metrics import declarations
from kernelfarm.service.metrics.declarations import Family
from tests.support.markdown import code_names, table_rows
from tests.support.metric_names import declared_metrics
from tests.support.source_code import ROOT

PAGE = ROOT / "docs" / "metrics.md"


def test_each_metric_is_on_the_page_with_its_labels() -> None:
    rows = table_rows(PAGE, "metric | labels")
    stated = {code_names(row[0])[0]: (tuple(code_names(row[1])), row[2]) for row in rows}
    assert stated == {
        name: (found.labels, found.kind) for name, found in declared_metrics().items()
    }


def test_names_have_the_prefix_and_base_units() -> None:
    for name in declared_metrics():
        assert name.startswith("kernelfarm_")
        assert not name.endswith(("_ms", "_us", "_kb", "_mib"))


def test_every_declaration_describes_its_metric() -> None:
    declared = [
        found
        for found in vars(declarations).values()
        if isinstance(found, (Family, MetricWrapperBase))
    ]
    assert len(declared) == len(declared_metrics())
