"""`kernelfarm self-test` compiles at a real farm, in a process that cannot import torch."""

from __future__ import annotations

import subprocess
import sys

from tests.support.farm import TIMEOUT_S

WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; from kernelfarm.cli import main; main()"


def self_test(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT_TORCH, "self-test", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)


def test_workers_compile_each_time(endpoint: str) -> None:
    for _ in range(2):
        ended = self_test("--endpoint", endpoint, "--vendor", "cpu")
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.startswith("cpu:") and ": miss, " in ended.stdout
        assert " 0 kernels" not in ended.stdout


def test_a_vendor_without_workers_is_named(endpoint: str) -> None:
    ended = self_test("--endpoint", endpoint, "--vendor", "no-such-vendor")
    assert ended.returncode == 1
    assert "no worker of no-such-vendor has reported" in ended.stderr
