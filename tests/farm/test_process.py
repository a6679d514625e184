"""Service processes as an operator sees them: exit status, signals, logs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.farm.processes import CodegenRoom, codegen_room
from tests.farm_process import PATIENCE_S


def run(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *command],
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.mark.parametrize("command", [["codegen_svc"], ["codegen_svc.worker", "--queue", "cpu"]])
def test_a_bad_setting_ends_the_process_with_2_and_its_name(command: list[str]) -> None:
    ended = run(command, KERNELFARM_JOB_TIME_LIMIT_S="soon")
    assert ended.returncode == 2
    assert "KERNELFARM_JOB_TIME_LIMIT_S" in ended.stderr and "soon" in ended.stderr


def test_an_unknown_queue_ends_the_worker_with_2_and_those_that_exist() -> None:
    ended = run(["codegen_svc.worker", "--queue", "abacus"])
    assert ended.returncode == 2
    assert "abacus" in ended.stderr and "cpu" in ended.stderr


@pytest.mark.parametrize(
    ("command", "variable"),
    [
        (["codegen_svc"], "KERNELFARM_TRUSTED_KEYS_FILE"),
        (["codegen_svc.worker", "--queue", "cpu"], "KERNELFARM_KERNEL_KEY_FILE"),
        (["frontend_svc"], "KERNELFARM_PROGRAM_KEY_FILE"),
    ],
)
def test_a_farm_that_signs_nothing_must_say_so(command: list[str], variable: str) -> None:
    ended = run(command)
    assert ended.returncode == 2
    assert variable in ended.stderr and "KERNELFARM_SIGNING=off" in ended.stderr


def test_a_port_that_cannot_be_bound_ends_the_edge_with_1(tmp_path: Path) -> None:
    listen = f"unix:{tmp_path}/no/such/folder"
    ended = run(["codegen_svc"], KERNELFARM_CODEGEN_LISTEN=listen, KERNELFARM_SIGNING="off")
    assert ended.returncode == 1
    last = json.loads(ended.stderr.splitlines()[-1])
    assert last["event"] == "service_failed" and "no/such/folder" in last["message"]


def test_services_stop_on_sigterm_with_0_and_log_nothing_but_json(tmp_path: Path) -> None:
    with codegen_room(tmp_path) as room:
        edge, worker = room.start_edge(), room.start_worker()
        edge.terminate()
        worker.terminate()
        assert (edge.wait(PATIENCE_S), worker.wait(PATIENCE_S)) == (0, 0)
        events = [line["event"] for line in json_lines(room, "edge")]
        assert events == ["listening", "draining", "stopped"]
        assert "worker_ready" in [line["event"] for line in json_lines(room, "worker")]


def test_a_service_that_no_hit_needs_yields_to_frontends_and_compilations_to_both(
    tmp_path: Path,
) -> None:
    with codegen_room(tmp_path) as room:
        edge, worker = psutil.Process(room.start_edge().pid), room.start_worker()
        assert edge.nice() == max(psutil.Process().nice(), 10)
        assert 19 in {child.nice() for child in psutil.Process(worker.pid).children()}


def json_lines(room: CodegenRoom, name: str) -> list[dict[str, str]]:
    """A log's lines; Celery announces its shutdown in plain text before the logs are ours again."""
    lines = room.log(name).decode().splitlines()
    return [json.loads(line) for line in lines if line and not line.startswith("worker: ")]
