"""Servers that are killed again and again lose no call: each ends by its deadline."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.faults.killed_server_calls import call_under_kills

KILLS = 6
TIMEOUT_S = 240


def test_every_call_ends_though_its_server_is_killed() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.faults.test_lost_calls", str(KILLS)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "OK" in ended.stdout and "UNAVAILABLE" in ended.stdout


if __name__ == "__main__":
    # In a process of its own, which ends at once: a call that never ends would hold pytest's.
    os._exit(min(call_under_kills(int(sys.argv[1])), 100))
