"""Service processes as an operator sees them: exit status, signals, logs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from codegen_svc.worker.__main__ import main as worker_main
from tests.support.codegen_processes import CodegenFarm, codegen_farm
from tests.support.farm import TIMEOUT_S


def run(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *command],
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@pytest.mark.parametrize("command", [["codegen_svc"], ["codegen_svc.worker", "--queue", "cpu"]])
def test_a_bad_setting_ends_the_process_with_2_and_its_name(command: list[str]) -> None:
    ended = run(command, KERNELFARM_JOB_TIME_LIMIT_S="soon")
    assert ended.returncode == 2
    assert "KERNELFARM_JOB_TIME_LIMIT_S" in ended.stderr and "soon" in ended.stderr


def test_an_unknown_queue_ends_the_worker_with_2_and_the_known_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        worker_main(["--queue", "abacus"])
    assert ended.value.code == 2
    reported = capsys.readouterr().err
    assert "abacus" in reported and "cpu" in reported


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


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CodegenFarm]:
    """An edge and a worker; the last test stops them."""
    with codegen_farm(tmp_path_factory.mktemp("services")) as started:
        started.start_edge()
        started.start_worker()
        yield started


def test_services_that_no_hit_needs_and_compilations_yield_to_frontends(farm: CodegenFarm) -> None:
    edge, worker = (psutil.Process(process.pid) for process in farm.processes)
    expected = max(psutil.Process().nice(), 10)
    assert edge.nice() == expected
    assert expected in {child.nice() for child in worker.children()}


def test_services_stop_on_sigterm_with_0_and_log_nothing_but_json(farm: CodegenFarm) -> None:
    edge, worker = farm.processes
    edge.terminate()
    worker.terminate()
    assert (edge.wait(TIMEOUT_S), worker.wait(TIMEOUT_S)) == (0, 0)
    events = [line["event"] for line in json_lines(farm, "edge")]
    assert events == ["listening", "draining", "stopped"]
    assert "worker_ready" in [line["event"] for line in json_lines(farm, "worker")]


def json_lines(farm: CodegenFarm, name: str) -> list[dict[str, str]]:
    """Lines of a log; Celery writes some plain text at shutdown before our handler is back."""
    lines = farm.log(name).decode().splitlines()
    return [json.loads(line) for line in lines if line and not line.startswith("worker: ")]
