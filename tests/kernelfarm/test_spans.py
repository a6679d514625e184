"""Spans of a process: without cost while they are off, bounded while their endpoint is away."""

from __future__ import annotations

import os
import subprocess
import sys

from kernelfarm import spans
from tests.support.farm import TIMEOUT_S

OFF = """
import sys
import kernelfarm.client.farm.client
from kernelfarm import spans
assert not spans.start_export("test")
with spans.span("a", target="cpu"):
    assert spans.outgoing() is None
    assert spans.trace_id() == ""
spans.end_export()
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
assert "prometheus_client" not in sys.modules
"""

AWAY = """
import time
from kernelfarm import spans
spans._END_S = 1.0
assert spans.start_export("test")
began = time.monotonic()
for _ in range(5000):  # more than the queue holds
    with spans.span("a"):
        (header,) = spans.outgoing()
assert time.monotonic() - began < 30
ended = time.monotonic()
spans.end_export()
assert time.monotonic() - ended < 6
name, parent = header
assert spans.CallSpan("/x.S/M", [header], 0.1).trace_id == parent.split("-")[1]
for wrong in ("", "x", parent + "-" + "y" * 100, parent.replace("00-", "ff-", 1)):
    assert spans.CallSpan("/x.S/M", [(name, wrong)], 0.1).trace_id != parent.split("-")[1], wrong
spans.end_export()
"""


def run(program: str, **environment: str) -> None:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("OTEL")}
    subprocess.run(
        [sys.executable, "-c", program],
        env={**inherited, **environment},
        check=True,
        timeout=TIMEOUT_S,
        stderr=subprocess.DEVNULL if environment else None,
    )


def test_without_an_endpoint_opentelemetry_is_not_imported() -> None:
    run(OFF)


def test_an_endpoint_that_is_away_delays_nothing_for_long() -> None:
    run(AWAY, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9")


async def test_functions_and_coroutine_functions_can_be_spans() -> None:
    @spans.in_span("one")
    def one(number: int) -> int:
        return number + 1

    @spans.in_span("two")
    async def two(number: int) -> int:
        return number + 2

    assert (one(1), await two(1)) == (2, 3)
