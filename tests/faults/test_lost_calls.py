"""A server that is killed again and again loses no call: each ends by its deadline."""

from __future__ import annotations

import subprocess
import sys

KILLS = 4
TIMEOUT_S = 240


def test_every_call_ends_though_its_server_is_killed() -> None:
    # In a process of its own, which exits at once: a call that never ends would block pytest's.
    ended = subprocess.run(
        [sys.executable, "-m", "tests.faults.killed_server_calls", str(KILLS)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "OK" in ended.stdout and "UNAVAILABLE" in ended.stdout
