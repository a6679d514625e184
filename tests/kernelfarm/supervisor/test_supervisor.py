"""The processes of a farm: how they start, restart and end. Here they are tiny programs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kernelfarm.errors import CallerError, UnavailableError
from kernelfarm.processes.child import ChildFailedError, ChildSpec
from kernelfarm.processes.hang_rules import WatchTimes
from kernelfarm.supervisor import rotate_logs
from kernelfarm.supervisor.layout import FarmConfig, farm_layout
from kernelfarm.supervisor.run import FarmOptions, run_farm
from kernelfarm.supervisor.supervisor import FarmLayout, Supervisor, exclusive_data_dir
from tests.kernelfarm.supervisor.child_specs import PROGRAM, spec
from tests.support.farm import TIMEOUT_S, wait_until
from tests.support.processes import is_running

_ROOT = Path(__file__).parents[3]


def run(
    folder: Path, stages: tuple[tuple[ChildSpec, ...], ...], serve: object, **layout: int
) -> list[str]:
    """Runs a supervisor whose `serve` is started when it is ready; returns what it reported."""
    reports: list[str] = []
    supervisor = Supervisor(FarmLayout("nowhere:0", folder, stages, **layout), reports.append)

    async def main() -> None:
        tasks = []

        async def announce() -> None:
            tasks.append(asyncio.create_task(serve(supervisor)))  # type: ignore[operator]

        await supervisor.run(announce, TIMEOUT_S)
        await asyncio.gather(*tasks)

    asyncio.run(main())
    return reports


async def stop(supervisor: Supervisor) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_children_drain_stage_by_stage(tmp_path: Path) -> None:
    stages = ((spec("edge", tmp_path),), (spec("service", tmp_path),), (spec("store", tmp_path),))
    run(tmp_path, stages, stop)
    assert (tmp_path / "ends").read_text().split() == ["edge", "service", "store"]
    assert json.loads((tmp_path / "farm.json").read_text())["state"] == "stopped"


def test_a_killed_child_is_restarted_at_once(tmp_path: Path) -> None:
    async def kill_one(supervisor: Supervisor) -> None:
        (child,) = (c for c in supervisor.children if c.spec.name == "service")
        first = child.pid
        (tmp_path / "service").unlink()
        os.kill(first, signal.SIGKILL)
        async with asyncio.timeout(TIMEOUT_S):
            while child.pid in (None, first) or not child.is_ready:
                await asyncio.sleep(0.01)
        assert child.restarts == 1
        await stop(supervisor)

    reports = run(tmp_path, ((spec("service", tmp_path),), (spec("store", tmp_path),)), kill_one)
    assert any("service ended (killed by SIGKILL)" in line for line in reports)


_WATCH = WatchTimes(every_s=0.1, probe_s=0.5, hung_s=1.0, start_s=TIMEOUT_S)


def answering_spec(folder: Path, name: str = "service") -> ChildSpec:
    """A child that answers probes on a socket of its own."""
    program = """
import pathlib, signal, socket, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
path = pathlib.Path(sys.argv[2], sys.argv[1])
path.unlink(missing_ok=True)
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(str(path))
    listener.listen()
    while True:
        caller, _ = listener.accept()
        with caller:
            caller.sendall(b"well")
"""

    async def probe() -> bool:
        reader, writer = await asyncio.open_unix_connection(str(folder / name))
        try:
            return await reader.read() == b"well"
        finally:
            writer.close()

    argv = (sys.executable, "-c", program, name, str(folder))
    return ChildSpec(name, argv, (), probe, drain_s=TIMEOUT_S, watch=_WATCH)


def test_a_child_that_is_stopped_is_reported_killed_and_restarted(tmp_path: Path) -> None:
    states: list[bool] = []

    async def stop_one(supervisor: Supervisor) -> None:
        (child,) = (c for c in supervisor.children if c.spec.name == "service")
        first = child.pid
        assert first is not None
        os.kill(first, signal.SIGSTOP)
        async with asyncio.timeout(TIMEOUT_S):
            while child.pid in (None, first) or not child.is_ready:
                status = json.loads((tmp_path / "farm.json").read_text())
                states.append(status["children"]["service"]["ready"])
                await asyncio.sleep(0.01)
        assert child.restarts == 1
        await stop(supervisor)

    stages = ((answering_spec(tmp_path),), (spec("store", tmp_path),))
    reports = run(tmp_path, stages, stop_one)
    assert any(line.startswith("service hangs") for line in reports)
    assert states[0] and not states[-1]


def test_the_processes_of_a_killed_child_end_with_it(tmp_path: Path) -> None:
    parent = """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
pathlib.Path(sys.argv[2], sys.argv[1]).write_text(str(child.pid))
child.wait()
"""

    async def kill_one(supervisor: Supervisor) -> None:
        (child,) = (c for c in supervisor.children if c.spec.name == "service")
        grandchild = int((tmp_path / "service").read_text())
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        async with asyncio.timeout(TIMEOUT_S):
            while Path(f"/proc/{grandchild}/cmdline").exists() and is_running(grandchild):
                await asyncio.sleep(0.01)
        await stop(supervisor)

    child = replace(spec("service", tmp_path, parent), drain_s=0.2)
    run(tmp_path, ((child,), (spec("store", tmp_path),)), kill_one)


def test_a_large_log_is_rotated_and_its_process_continues_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rotate_logs, "_PERIOD_S", 0.1)
    talker = """
import pathlib, sys, time
pathlib.Path(sys.argv[2], sys.argv[1]).touch()
while True:
    print("x" * 99, flush=True)
    time.sleep(0.0001)
"""

    async def wait_for_rotation(supervisor: Supervisor) -> None:
        log = tmp_path / "logs" / "service.log"
        async with asyncio.timeout(TIMEOUT_S):
            while not log.with_suffix(".log.1").exists():
                await asyncio.sleep(0.01)
            size = log.stat().st_size
            while log.stat().st_size <= size:  # written to after it was cut
                size = min(size, log.stat().st_size)
                await asyncio.sleep(0.01)
        await stop(supervisor)

    stages = ((replace(spec("service", tmp_path, talker), drain_s=5),), (spec("store", tmp_path),))
    run(tmp_path, stages, wait_for_rotation, log_max_bytes=10_000)


def test_a_farm_that_cannot_write_its_status_says_so_and_serves(tmp_path: Path) -> None:
    async def kill_one(supervisor: Supervisor) -> None:
        (tmp_path / "farm.json.new").mkdir()
        (child,) = (c for c in supervisor.children if c.spec.name == "service")
        first = child.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        async with asyncio.timeout(TIMEOUT_S):
            while child.pid in (None, first) or not child.is_ready:
                await asyncio.sleep(0.01)
        await stop(supervisor)

    reports = run(tmp_path, ((spec("service", tmp_path),), (spec("store", tmp_path),)), kill_one)
    assert sum("cannot write farm.json" in line for line in reports) == 1


# Is killed as it starts, as often as its environment says.
_UNLUCKY = f"""
import os, pathlib, signal, sys
with pathlib.Path(sys.argv[2], "starts").open("a") as starts:
    starts.write("x")
if pathlib.Path(sys.argv[2], "starts").stat().st_size <= int(os.environ["UNLUCKY"]):
    os.kill(os.getpid(), signal.SIGKILL)
{PROGRAM}
"""


def test_a_child_that_is_killed_as_it_starts_is_restarted(tmp_path: Path) -> None:
    unlucky = replace(spec("service", tmp_path, _UNLUCKY), environment=(("UNLUCKY", "2"),))
    reports = run(tmp_path, ((unlucky, spec("other", tmp_path)), (spec("store", tmp_path),)), stop)
    assert sum("service was killed as it started" in line for line in reports) == 2
    assert (tmp_path / "starts").read_text() == "xxx"
    assert sorted((tmp_path / "ends").read_text().split()) == ["other", "service", "store"]


def test_a_child_that_is_always_killed_as_it_starts_ends_the_farm(tmp_path: Path) -> None:
    unlucky = replace(spec("service", tmp_path, _UNLUCKY), environment=(("UNLUCKY", "99"),))
    with pytest.raises(ChildFailedError, match=r"service did not start \(killed by SIGKILL"):
        run(tmp_path, ((unlucky,), (spec("store", tmp_path),)), stop)
    assert (tmp_path / "ends").read_text().split() == ["store"]


def test_a_child_that_cannot_start_is_quoted_and_the_rest_is_stopped(tmp_path: Path) -> None:
    broken = spec("service", tmp_path, "raise SystemExit('no tool called frobnicate')")
    with pytest.raises(ChildFailedError, match="service did not start") as caught:
        run(tmp_path, ((broken,), (spec("store", tmp_path),)), stop)
    assert "no tool called frobnicate" in str(caught.value)
    assert (tmp_path / "ends").read_text().split() == ["store"]


def test_a_child_that_hangs_at_its_end_is_killed(tmp_path: Path) -> None:
    deaf = """
import pathlib, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[2], sys.argv[1]).touch()
while True: signal.pause()
"""
    slow = spec("service", tmp_path, deaf)
    slow = replace(slow, drain_s=0.2)
    reports = run(tmp_path, ((slow,), (spec("store", tmp_path),)), stop)
    assert any("service did not drain" in line for line in reports)


def test_children_end_with_a_supervisor_that_was_killed(tmp_path: Path) -> None:
    script = f"""
import asyncio
from pathlib import Path
from kernelfarm.supervisor.supervisor import FarmLayout, Supervisor
from tests.kernelfarm.supervisor.child_specs import spec
folder = Path({str(tmp_path)!r})
layout = FarmLayout("nowhere:0", folder, ((spec("service", folder),), (spec("store", folder),)))
async def announce(): print("READY", flush=True)
asyncio.run(Supervisor(layout, print).run(announce, {TIMEOUT_S}))
"""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=_ROOT) as supervisor:
        assert supervisor.stdout is not None
        assert supervisor.stdout.readline() == "READY\n"
        supervisor.kill()
    ends = tmp_path / "ends"
    wait_until(lambda: ends.exists() and len(ends.read_text().split()) == 2, TIMEOUT_S, "both ends")


def test_two_farms_cannot_share_a_data_directory(tmp_path: Path) -> None:
    with (
        exclusive_data_dir(tmp_path),
        pytest.raises(UnavailableError, match="another farm uses"),
        exclusive_data_dir(tmp_path),
    ):
        raise AssertionError("held twice")


def test_an_unknown_vendor_is_refused_before_anything_starts(tmp_path: Path) -> None:
    options = FarmOptions(None, ("cpu", "abacus"), 0, tmp_path, follow=False)
    with pytest.raises(CallerError, match="abacus"):
        run_farm(options)
    assert not list(tmp_path.iterdir())


def plan_of(folder: Path, **urls: str | None) -> FarmConfig:
    return FarmConfig(
        endpoint="127.0.0.1:1",
        data_dir=folder,
        run_dir=folder,
        vendors=("cpu", "cuda"),
        cpu_workers=2,
        jobs_each=3,
        **{"broker_url": None, "cache_url": None, **urls},
    )


def test_a_farm_has_two_servers_three_services_and_workers_for_each_vendor(tmp_path: Path) -> None:
    layout = farm_layout(plan_of(tmp_path))
    assert [[child.name for child in stage] for stage in layout.stages] == [
        ["frontend"],
        ["codegen"],
        ["optimizer"],
        ["worker-cpu-0", "worker-cpu-1", "worker-cuda-0"],
        ["redis-broker", "redis-cache"],
    ]


def test_several_frontends_share_the_endpoint_and_have_a_probe_each(tmp_path: Path) -> None:
    layout = farm_layout(replace(plan_of(tmp_path), frontends=2))
    assert [child.name for child in layout.stages[0]] == ["frontend-0", "frontend-1"]
    environments = [dict(child.environment) for child in layout.stages[0]]
    assert {found["KERNELFARM_FRONTEND_LISTEN"] for found in environments} == {"127.0.0.1:1"}
    assert len({found["KERNELFARM_FRONTEND_PROCESS_LISTEN"] for found in environments}) == 2
    # The page has one address, so one process serves it.
    assert [found.get("KERNELFARM_PAGE_LISTEN") for found in environments] == [None, ""]
    # Each is one process, although our own environment may have another number for the farm.
    assert {found["KERNELFARM_FRONTEND_PROCESSES"] for found in environments} == {"1"}


def test_a_configured_server_is_used_instead_of_an_embedded_one(tmp_path: Path) -> None:
    layout = farm_layout(plan_of(tmp_path, cache_url="redis://cache:6379/0"))
    assert [child.name for child in layout.stages[-1]] == ["redis-broker"]
    (frontend,) = layout.stages[0]
    assert dict(frontend.environment)["KERNELFARM_CACHE_URL"] == "redis://cache:6379/0"


def test_help_needs_neither_torch_nor_redis_nor_grpc() -> None:
    code = """
import sys
sys.argv = ["kernelfarm", "--help"]
from kernelfarm.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code
heavy = {"torch", "redis", "grpc"} & set(sys.modules)
assert not heavy, heavy
"""
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert shown.returncode == 0, shown.stderr
    assert "up" in shown.stdout
