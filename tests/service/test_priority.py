"""Which processors a service and heavy work may use, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="one processor: nothing to leave"
)

_THREADS = """
import json, os, threading
from pathlib import Path
from kernelfarm.service.priority import LeftProcessor

def used():
    return [sorted(os.sched_getaffinity(int(t.name))) for t in Path("/proc/self/task").iterdir()]

end = threading.Event()
threads = [threading.Thread(target=end.wait) for _ in range(3)]
for thread in threads:
    thread.start()
left, told = LeftProcessor(), []
others = len(os.sched_getaffinity(0)) - 1
for heavy_jobs in (0, others - 1, others, others + 3, 0):
    (left.stay if left.is_the_last(heavy_jobs) else left.leave)()
    told.append(used())
end.set()
print(json.dumps(told))
"""

_LEAVING = """
import os
from kernelfarm.service.priority import leave_a_processor, yield_to_all
leave_a_processor(0)
leave_a_processor(0)
yield_to_all(0)
print(os.sched_getscheduler(0) == os.SCHED_IDLE, sorted(os.sched_getaffinity(0)))
"""


def output_of(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_a_service_stays_on_the_left_processor_while_all_others_do_heavy_work() -> None:
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
