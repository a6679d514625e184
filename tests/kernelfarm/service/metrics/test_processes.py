"""Metrics of several processes at one endpoint."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from kernelfarm.service.metrics.declarations import KERNEL_COMPILE_SECONDS, REGISTRY
from kernelfarm.service.metrics.processes import ChildProcesses, CountedMetrics, shared_metrics

CHILD = """
import sys
from kernelfarm.service.metrics.processes import join_shared_metrics
join_shared_metrics(sys.argv[1])
from kernelfarm.service.metrics.declarations import INBOUND_BYTES, KERNEL_COMPILE_SECONDS
KERNEL_COMPILE_SECONDS.labels("echo", "built").observe(0.2)
INBOUND_BYTES.labels("held").set(int(sys.argv[2]))
"""


def run_child(slot: str, held: int) -> None:
    subprocess.run([sys.executable, "-c", CHILD, slot, str(held)], check=True)


def total(name: str, **labels: str) -> float:
    return sum(
        sample.value
        for metric in CountedMetrics().collect()
        for sample in metric.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def test_processes_that_start_within_the_block_add_to_one_page() -> None:
    count = "kernelfarm_kernel_compile_seconds_count"
    with shared_metrics():
        folder = Path(os.environ["PROMETHEUS_MULTIPROC_DIR"])
        run_child("0", held=5)
        run_child("1", held=7)
        assert total(count, vendor="echo") == 2
        assert total("kernelfarm_inbound_bytes", kind="held") == 12
        files = set(folder.iterdir())
        run_child("1", held=1)  # takes the slot of an earlier process
        assert total(count, vendor="echo") == 3
        assert total("kernelfarm_inbound_bytes", kind="held") == 6
        assert set(folder.iterdir()) == files, "the number of files is bounded"
        KERNEL_COMPILE_SECONDS.labels("echo", "failed").observe(1)
        assert total(count, vendor="echo") == 4, "this process counts too"
    assert not folder.exists()
    KERNEL_COMPILE_SECONDS.remove("echo", "failed")
    assert REGISTRY.get_sample_value(count, {"vendor": "echo", "outcome": "built"}) is None


def test_child_processes_are_counted_with_their_memory() -> None:
    def measured() -> tuple[float, float]:
        processes, resident = ChildProcesses().collect()
        return processes.samples[0].value, resident.samples[0].value

    before, before_bytes = measured()
    program = "import os,time; os.fork(); print(flush=True); time.sleep(600)"
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", program],
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        child.stdout.readline()
        processes, resident_bytes = measured()
        os.killpg(child.pid, 9)
    assert processes == before + 2
    assert resident_bytes > before_bytes + 2e6
