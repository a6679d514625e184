"""The alert rules: each is valid, has a runbook, and fires for the series that it is about."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.support.metric_names import series_names
from tests.support.prometheus_rules import LIBRARY_SERIES, RULES, alerts, series_of
from tests.support.source_code import ROOT
from tests.support.third_party import need, output_of

Series = dict[str, str]

CALLS = "kernelfarm_call_seconds_count"
JOBS = "kernelfarm_kernel_compile_seconds_count"
BUCKET = 'kernelfarm_call_seconds_bucket{method="CompileService/Lookup",status="OK",le='
PLACE = 'instance="a",job="kernelfarm-frontend"'
TOOLCHAIN = 'kernelfarm_build_info{service="optimizer",toolchain='


def event(name: str, space: str = "kernels") -> str:
    return f'kernelfarm_farm_events_total{{space="{space}",event="{name}",{PLACE}}}'


def labelled(name: str, *labels: str) -> str:
    return f"{name}{{{','.join([*labels, PLACE])}}}"


HEALTHY: Series = {
    labelled("up"): "1x46",
    labelled("kernelfarm_farm_counters_up"): "1x46",
    labelled(CALLS, 'method="CompileService/Lookup"', 'status="OK"'): "0+600x46",
    labelled(CALLS, 'method="CompileService/Lookup"', 'status="UNAVAILABLE"'): "0+1x46",
    labelled(CALLS, 'method="CompileService/Lookup"', 'status="NOT_FOUND"'): "0+600x46",
    f'{BUCKET}"0.01"}}': "0+600x46",
    f'{BUCKET}"+Inf"}}': "0+600x46",
    labelled("kernelfarm_queue_oldest_seconds", 'vendor="cpu"', 'priority="interactive"'): "2x46",
    labelled("kernelfarm_queue_oldest_seconds", 'vendor="cpu"', 'priority="warm_up"'): "900x46",
    labelled("kernelfarm_queued_jobs", 'vendor="cpu"', 'state="sent"'): "3x46",
    labelled("kernelfarm_queued_jobs", 'vendor="rocm"', 'state="sent"'): "0x46",
    labelled("kernelfarm_worker_slots", 'vendor="cpu"'): "2x46",
    labelled(JOBS, 'vendor="cpu"', 'outcome="built"'): "0+60x46",
    labelled(JOBS, 'vendor="cpu"', 'outcome="rejected"'): "0+60x46",
    labelled(JOBS, 'vendor="cpu"', 'outcome="failed"'): "0x46",
    **{event(name): "7x46" for name in ("quarantined", "takeovers", "stale_serves", "fenced")},
    event("merged"): "0+600x46",
    event("missing_blobs"): "0+0.1x46",
    labelled("kernelfarm_farm_misses_total", 'space="programs"', 'reason="cold"'): "0+60x46",
    labelled("kernelfarm_farm_misses_total", 'space="programs"', 'reason="incarnation"'): "5x46",
    labelled("kernelfarm_inbound_bytes", 'kind="held"'): "10x46",
    labelled("kernelfarm_inbound_bytes", 'kind="limit"'): "100x46",
    labelled("process_open_fds"): "100x46",
    labelled("process_max_fds"): "1000x46",
    labelled("kernelfarm_tenant_bytes", 'tenant="acme"'): "10x46",
    labelled("kernelfarm_tenant_limit_bytes", 'tenant="acme"'): "100x46",
    f'{TOOLCHAIN}"optimizer@1",instance="a"}}': "1x46",
    f'{TOOLCHAIN}"optimizer@1",instance="b"}}': "1x46",
}

FAULTS: dict[str, Series] = {
    "KernelfarmProcessDown": {labelled("up"): "0x46"},
    "KernelfarmCacheSilent": {labelled("kernelfarm_farm_counters_up"): "0x46"},
    "KernelfarmCallsFail": {
        labelled(CALLS, 'method="CompileService/Lookup"', 'status="UNAVAILABLE"'): "0+200x46"
    },
    "KernelfarmBug": {
        # The series appears with its first error.
        labelled(CALLS, 'method="CompileService/Compile"', 'status="INTERNAL"'): "_x44 1x2"
    },
    "KernelfarmHitsSlow": {f'{BUCKET}"0.01"}}': "0+500x46", f'{BUCKET}"1"}}': "0+600x46"},
    "KernelfarmQueueOld": {
        labelled("kernelfarm_queue_oldest_seconds", 'vendor="cpu"', 'priority="interactive"'): (
            "61x46"
        )
    },
    "KernelfarmNoWorker": {
        labelled("kernelfarm_queued_jobs", 'vendor="rocm"', 'state="sent"'): "1x46"
    },
    "KernelfarmKernelsFail": {labelled(JOBS, 'vendor="cpu"', 'outcome="failed"'): "0+6x46"},
    "KernelfarmWorkersShort": {labelled(JOBS, 'vendor="cpu"', 'outcome="unavailable"'): "0+60x46"},
    "KernelfarmQuarantine": {event("quarantined"): "7x43 8x3"},
    "KernelfarmTakeovers": {event("takeovers"): "7x43 8x3"},
    "KernelfarmStaleServe": {event("stale_serves"): "0x43 1x3"},
    "KernelfarmResultsDiffer": {event("nondeterministic"): "0x43 1x3"},
    "KernelfarmCacheAltered": {event("forged", "programs"): "0x43 1x3"},
    "KernelfarmCacheTooSmall": {event("missing_blobs"): "0+10x46"},
    "KernelfarmEpochTableLost": {
        labelled("kernelfarm_farm_misses_total", 'space="programs"', 'reason="incarnation"'): (
            "5x43 6x3"
        )
    },
    "KernelfarmLeasesOutlived": {event("fenced"): "0+1x46"},
    "KernelfarmInboundFull": {labelled("kernelfarm_inbound_bytes", 'kind="held"'): "90x46"},
    "KernelfarmOpenFiles": {labelled("process_open_fds"): "900x46"},
    "KernelfarmTenantNearQuota": {labelled("kernelfarm_tenant_bytes", 'tenant="acme"'): "95x46"},
    "KernelfarmTenantsFileUnusable": {event("tenants_file_errors", "programs"): "0x43 1x3"},
    "KernelfarmToolchainsDiffer": {
        f'{TOOLCHAIN}"optimizer@1",instance="b"}}': "_x46",
        f'{TOOLCHAIN}"optimizer@2",instance="b"}}': "1x46",
    },
}
"""What differs from the healthy series when an alert is to fire."""


def test_the_rules_are_valid() -> None:
    need("promtool")
    assert f"{len(alerts())} rules found" in output_of("promtool", "check", "rules", str(RULES))


def test_every_alert_has_a_runbook_and_a_severity() -> None:
    for alert in alerts():
        assert alert.annotations.keys() == {"summary", "runbook"}, alert.name
        assert len(alert.annotations["runbook"]) > 40, alert.name
        assert alert.severity in {"critical", "warning"}, alert.name


def test_each_runbook_leads_to_a_section_that_names_the_alert() -> None:
    page = (ROOT / "docs/operations.md").read_text()
    sections = {part.partition("\n")[0]: part for part in page.split("\n### ")[1:]}
    anchors = {title.lower().replace(" ", "-"): text for title, text in sections.items()}
    for alert in alerts():
        _, _, anchor = alert.annotations["runbook"].rpartition("docs/operations.md#")
        assert f"`{alert.name}`" in anchors[anchor.removesuffix(".")], alert.name


def test_alerts_name_series_that_exist() -> None:
    for alert in alerts():
        unknown = series_of(alert.expression) - series_names() - LIBRARY_SERIES
        assert not unknown, alert.name


def test_each_alert_fires_in_a_farm_in_which_a_test_causes_it() -> None:
    texts = "".join(file.read_text() for file in (ROOT / "tests/e2e").glob("test_prometheus*.py"))
    assert {alert.name for alert in alerts()} == set(re.findall(r'"(Kernelfarm\w+)"', texts))


def test_each_alert_fires_for_its_fault_and_for_no_healthy_farm(tmp_path: Path) -> None:
    need("promtool")
    names = [alert.name for alert in alerts()]
    assert set(FAULTS) == set(names)
    healthy = _case(HEALTHY, {name: False for name in names})
    faults = [_case(HEALTHY | FAULTS[name], {name: True}) for name in names]
    tests = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [healthy, *faults],
    }
    file = tmp_path / "alerts_test.yaml"
    file.write_text(yaml.safe_dump(tests))
    assert "SUCCESS" in output_of("promtool", "test", "rules", str(file))


def _case(series: Series, fires: dict[str, bool]) -> dict[str, object]:
    """A test of promtool: after 46 minutes, whether each alert fires, whatever its labels are."""
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) > 0 or vector(0)',
                "eval_time": "46m",
                "exp_samples": [{"labels": "{}", "value": 1 if is_firing else 0}],
            }
            for name, is_firing in fires.items()
        ],
    }


@pytest.mark.parametrize("text", ["sum by (vendor) (kernelfarm_a_total{kernelfarm_b='x'})"])
def test_series_are_found_in_an_expression(text: str) -> None:
    assert "kernelfarm_a_total" in series_of(text)
