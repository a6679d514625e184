"""Metrics of several processes at one endpoint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from kernelfarm.service.metrics.declarations import KERNEL_COMPILE_SECONDS, REGISTRY
from kernelfarm.service.metrics.processes import CountedMetrics, shared_metrics

CHILD = """
import sys
from kernelfarm.service.metrics.processes import join_shared_metrics
join_shared_metrics(sys.argv[1])
from kernelfarm.service.metrics.declarations import INBOUND_BYTES, KERNEL_COMPILE_SECONDS
KERNEL_COMPILE_SECONDS.labels("echo", "built").observe(0.2)
INBOUND_BYTES.labels("held").set(int(sys.argv[2]))
"""

# In a process of its own: children of other tests end at any time.
COUNTING = """
import json, os, time
from kernelfarm.service.metrics.processes import ChildProcesses

def measured():
    return [family.samples[0].value for family in ChildProcesses().collect()]

before = measured()
reading, writing = os.pipe()
child = os.fork()
if child == 0:
    os.setsid()
    os.fork()
    os.write(writing, b"x")
    time.sleep(600)
for _ in range(2):
    os.read(reading, 1)
after = measured()
os.killpg(child, 9)
print(json.dumps(list(zip(before, after))))
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
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COUNTING], stdout=subprocess.PIPE, check=True
    )
    counts, resident_bytes = json.loads(done.stdout)
    assert counts == [0, 2]
    assert resident_bytes[1] > resident_bytes[0] + 2e6
