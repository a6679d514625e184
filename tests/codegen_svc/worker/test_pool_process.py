"""The heartbeat of a worker's pool process."""

from __future__ import annotations

import os
from pathlib import Path

from codegen_svc.settings import WorkerSettings
from codegen_svc.worker.consumer import process_file
from codegen_svc.worker.pool_process import WorkerProcess


def test_a_process_has_no_heartbeat_until_its_toolchain_is_ready(tmp_path: Path) -> None:
    """A file without beats looks like a hang: on a busy machine, workers were killed at start."""
    process = WorkerProcess(WorkerSettings(signing="off"), "cpu", tmp_path / "heartbeat")
    process._write_heartbeat()
    assert not process_file(tmp_path / "heartbeat", os.getpid()).exists()
