"""The processors that a service and heavy work use, each in a process of its own."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="one processor: nothing to leave"
)

_THREADS = """
import json, os, threading
from pathlib import Path
from kernelfarm.service.priority import FreeProcessor

def used():
    return [sorted(os.sched_getaffinity(int(t.name))) for t in Path("/proc/self/task").iterdir()]

end = threading.Event()
threads = [threading.Thread(target=end.wait) for _ in range(3)]
for thread in threads:
    thread.start()
left, reported = FreeProcessor(), []
others = len(os.sched_getaffinity(0)) - 1
for heavy_jobs in (0, others - 1, others, others + 3, 0):
    (left.stay if left.is_the_last(heavy_jobs) else left.leave)()
    reported.append(used())
end.set()
print(json.dumps(reported))
"""

_LEAVING = """
import os
from kernelfarm.service.priority import leave_a_processor, yield_to_all
leave_a_processor(0)
leave_a_processor(0)
yield_to_all(0)
print(os.sched_getscheduler(0) == os.SCHED_IDLE, sorted(os.sched_getaffinity(0)))
"""

_YIELDING = """
import os
from pathlib import Path
from kernelfarm.service.priority import {yielding}
{yielding}()
child = os.fork()
facts = dict(
    line.replace(" ", "").split(":", 1)
    for line in Path("/proc/self/sched").read_text().splitlines()
    if ":" in line
)
report = str(os.getpriority(os.PRIO_PROCESS, 0)) + " " + facts.get("se.slice", "unknown")
if child == 0:
    print(report, flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(report)
"""


def output_of(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_a_service_stays_on_the_free_processor_while_all_others_do_heavy_work() -> None:
    every = sorted(os.sched_getaffinity(0))
    none, some, most, more, none_again = json.loads(output_of(_THREADS))
    assert none == some == none_again == [every] * 4
    assert most == more == [every[:1]] * 4


def test_heavy_work_leaves_a_processor() -> None:
    first, *others = sorted(os.sched_getaffinity(0))
    # A second time takes one of what is left, so that it is never all.
    expected = others[1:] or others
    assert output_of(_LEAVING).strip() == f"True {expected}"
    assert first not in expected


@pytest.mark.parametrize(
    ("yielding", "slice_ns"),
    [("yield_to_frontends", 20_000_000), ("yield_to_services", 50_000_000)],
)
def test_who_yields_has_a_lower_priority_and_longer_slices(yielding: str, slice_ns: int) -> None:
    """Its children too."""
    of_child, of_process = output_of(_YIELDING.format(yielding=yielding)).splitlines()
    assert of_child == of_process
    nice, taken_ns = of_child.split()
    assert int(nice) == max(10, os.getpriority(os.PRIO_PROCESS, 0))
    release = tuple(map(int, platform.release().split(".")[:2]))
    if taken_ns == "unknown" or release < (6, 12):
        pytest.skip("this kernel does not take or report slices")
    assert int(taken_ns) == slice_ns
