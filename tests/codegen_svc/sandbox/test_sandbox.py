"""A misbehaving compilation reaches nothing, costs one attempt, and is named in the error."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import redis

from codegen_svc.sandbox.level import ConfinementLevel, Mechanism
from codegen_svc.sandbox.probe import probed_level
from kernelfarm.errors import (
    InternalError,
    KernelLimitError,
    KernelRejectedError,
    UnavailableError,
)
from kernelfarm.internal.v1 import codegen_service_pb2 as pb
from kernelfarm.internal.v1.codegen_service_pb2_grpc import CodegenServiceStub
from kernelfarm.service.channels import open_channel
from kernelfarm.v1 import artifact_pb2
from tests.codegen_svc.sandbox.mechanisms import ALL
from tests.support.codegen_calls import artifacts_of, build_fresh
from tests.support.codegen_processes import CodegenFarm, codegen_farm
from tests.support.farm import TIMEOUT_S, wait_until
from tests.support.not_run import PREFIX

# mount, bpf, unshare, ptrace, userfaultfd, io_uring_setup, setns
CALLS = {
    "x86_64": [165, 321, 272, 101, 323, 425, 308],
    "aarch64": [40, 280, 97, 117, 282, 425, 268],
}


@pytest.fixture(scope="module")
def level() -> ConfinementLevel:
    return probed_level()


@pytest.fixture(scope="module")
def codegen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CodegenFarm]:
    folder = tmp_path_factory.mktemp("sandbox")
    limits = {"sandbox_memory_bytes": str(1 << 29), "sandbox_file_bytes": str(16 << 20)}
    with codegen_farm(folder, job_time_limit_s="20", **limits) as started:
        started.start_edge()
        started.start_worker()
        yield started


async def build(stub: CodegenServiceStub, name: str) -> artifact_pb2.Artifact:
    return artifacts_of(await build_fresh(stub, name))[-1]


def demand(level: ConfinementLevel, *mechanisms: Mechanism) -> None:
    missing = [m.value for m in mechanisms if m not in level.mechanisms]
    if missing:
        pytest.skip(f"{PREFIX}{', '.join(missing)} of this host")


async def test_artifact_and_log_state_how_the_compilation_was_confined(
    codegen: CodegenFarm, stub: CodegenServiceStub, level: ConfinementLevel
) -> None:
    assert (await build(stub, "plain_reported")).sandbox == str(level)
    (ready,) = [line for line in codegen.log("worker").splitlines() if b"worker_ready" in line]
    assert json.loads(ready)["sandbox"] == str(level)


async def attempts_of(farm: CodegenFarm, stub: CodegenServiceStub, name: str) -> dict[str, str]:
    """What each forbidden access of a compilation returned."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        wishes = {
            "read": [
                "/etc/passwd",
                str(farm.folder / "worker.log"),
                farm.environment["KERNELFARM_KERNEL_KEY_FILE"],
                f"/proc/{farm.processes[-1].pid}/environ",
                __file__,
            ],
            "write": ["/tmp/kernelfarm-not-mine", str(farm.folder / "mine"), __file__],
            "unix": [url.removeprefix("unix://") for url in (farm.cache.url, farm.broker.url)],
            "tcp": [server.getsockname()[1]],
            "calls": CALLS.get(platform.machine(), []),
            "secrets": [v for n, v in farm.environment.items() if n.startswith("KERNELFARM_")],
        }
        (farm.blocked_jobs / "wishes.json").write_text(json.dumps(wishes))
        artifact = await build(stub, name)
    return dict(note.rsplit(": ", 1) for note in artifact.notes)


async def test_a_compilation_reads_no_file_of_others_and_writes_only_its_own(
    codegen: CodegenFarm, stub: CodegenServiceStub, level: ConfinementLevel
) -> None:
    demand(level, Mechanism.LANDLOCK)
    got = await attempts_of(codegen, stub, "nosy_files")
    assert got["scratch"] == "granted"
    files = {name: answer for name, answer in got.items() if name.startswith(("read", "write"))}
    assert len(files) == 8
    assert all(answer.startswith("refused PermissionError") for answer in files.values()), files
    assert not (codegen.folder / "mine").exists()


async def test_a_compilation_reaches_no_server_and_no_other_process(
    codegen: CodegenFarm, stub: CodegenServiceStub, level: ConfinementLevel
) -> None:
    demand(level, Mechanism.SECCOMP)
    got = await attempts_of(codegen, stub, "nosy_network")
    reached = {n: a for n, a in got.items() if n.startswith(("connect", "kill", "call", "new"))}
    assert len(reached) >= 6
    assert all(answer.startswith("refused") for answer in reached.values()), reached
    assert (await build(stub, "plain_after_prying")).stages


async def test_a_compilation_inherits_no_setting_of_the_farm(
    codegen: CodegenFarm, stub: CodegenServiceStub
) -> None:
    assert (await attempts_of(codegen, stub, "nosy_secrets"))["secrets"] == "[]"


ENDS = {
    "crash": (KernelRejectedError, "crashed with SIGSEGV"),
    "abort": (KernelRejectedError, "crashed with SIG"),
    "hog": (KernelLimitError, "more than 512 MiB of memory"),
    "fill": (KernelLimitError, "more than 16 MiB of files"),
    "opens": (KernelLimitError, "more than 256 files"),
    "bomb": (KernelLimitError, "more than (64 processes|512 MiB of memory)"),
    "sharing": (KernelLimitError, "more than 512 MiB of memory"),
    "leave": (InternalError, "exited with 3"),
}


@pytest.mark.parametrize("kind", ENDS)
async def test_a_compilation_that_fails_costs_one_attempt_and_the_worker_goes_on(
    kind: str, codegen: CodegenFarm, stub: CodegenServiceStub
) -> None:
    error, message = ENDS[kind]
    ready = codegen.log("worker").count(b"worker_ready")
    with pytest.raises(error, match=message):
        await build(stub, f"{kind}_once")
    assert codegen.compilations(f"{kind}_once") == 1
    assert (await build(stub, f"plain_after_{kind}")).stages
    assert codegen.log("worker").count(b"worker_ready") == ready
    with redis.Redis.from_url(codegen.cache.url) as raw:
        assert not raw.hget("kf:{default}:stats", "k.takeovers")


def children_of(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def zygote_of(farm: CodegenFarm) -> tuple[int, Path]:
    """The process id and the folder of the worker's zygote."""
    waiting = [farm.processes[-1].pid]
    while waiting:
        pid = waiting.pop()
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        if "codegen_svc.sandbox.zygote" in words:
            return pid, Path(words[words.index("--folder") + 1])
        waiting += children_of(pid)
    raise AssertionError("the worker has no zygote")


def lose_folder(farm: CodegenFarm) -> None:
    shutil.rmtree(zygote_of(farm)[1])


def lose_zygote(farm: CodegenFarm) -> None:
    os.kill(zygote_of(farm)[0], signal.SIGKILL)


def stop_zygote(farm: CodegenFarm) -> None:
    os.kill(zygote_of(farm)[0], signal.SIGSTOP)


def lose_supervisors(farm: CodegenFarm) -> None:
    for supervisor in children_of(zygote_of(farm)[0]):
        os.kill(supervisor, signal.SIGKILL)


def lose_compilers(farm: CodegenFarm) -> None:
    for supervisor in children_of(zygote_of(farm)[0]):
        for compiler in children_of(supervisor):
            os.kill(compiler, signal.SIGKILL)


LOSSES = [lose_folder, lose_zygote, lose_supervisors, lose_compilers]


# A worker gives a stopped zygote 10 s before it starts another one.
SLOW_LOSS = pytest.param(stop_zygote, marks=pytest.mark.slow)


@pytest.mark.parametrize("lose", [*LOSSES, SLOW_LOSS])
async def test_sandbox_processes_and_folders_lost_between_kernels_are_replaced(
    lose: Callable[[CodegenFarm], None], codegen: CodegenFarm, stub: CodegenServiceStub
) -> None:
    assert (await build(stub, f"plain_before_{lose.__name__}")).stages
    lose(codegen)
    for number in range(2):
        assert (await build(stub, f"plain_{lose.__name__}{number}")).stages
    assert zygote_of(codegen)[1].is_dir()
    assert b"its supervisor was lost" not in codegen.log("edge")


@pytest.mark.parametrize("lose", LOSSES)
async def test_a_kernel_is_compiled_although_a_process_or_folder_is_lost_meanwhile(
    lose: Callable[[CodegenFarm], None], codegen: CodegenFarm, stub: CodegenServiceStub
) -> None:
    name = f"gated_{lose.__name__}"
    running = asyncio.create_task(build(stub, name))
    await asyncio.to_thread(codegen.pid_of_blocked_job, name)
    lose(codegen)
    codegen.release_job(name)
    assert (await running).stages
    assert (await build(stub, f"plain_after_{name}")).stages


async def test_a_folder_lost_during_a_compilation_makes_the_kernel_unavailable(
    codegen: CodegenFarm, stub: CodegenServiceStub
) -> None:
    """Each attempt removes its own folder, so the second is lost too."""
    with pytest.raises(UnavailableError, match="was removed"):
        await build(stub, "homeless_twice")
    assert codegen.compilations("homeless_twice") == 2
    assert (await build(stub, "plain_after_homeless")).stages


async def test_a_worker_that_cannot_compile_withdraws_its_report_until_it_can(
    tmp_path: Path,
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    beats = str(tmp_path / "beat")
    times = {"shortage_ttl_s": "0.1", "sandbox_retry_s": "2"}
    with codegen_farm(tmp_path, worker_heartbeat_file=beats, **times) as farm:
        farm.environment["TMPDIR"] = str(temporary)
        farm.start_edge()
        farm.start_worker()
        async with open_channel(farm.address) as channel:
            stub = CodegenServiceStub(channel)
            assert (await build(stub, "plain_before")).stages
            while not (await stub.GetToolchains(pb.GetToolchainsRequest())).targets:
                await asyncio.sleep(0.1)  # only a report can be withdrawn
            temporary.rename(tmp_path / "away")
            with pytest.raises(UnavailableError, match="cannot be started"):
                await build(stub, "plain_meanwhile")
            log = partial(farm.log, "worker")
            withdrawn = lambda: b"report_withdrawn" in log()  # noqa: E731
            await asyncio.to_thread(wait_until, withdrawn, TIMEOUT_S, "the report's withdrawal")
            temporary.mkdir()
            assert (await build(stub, "plain_after")).stages


def test_a_worker_whose_host_offers_less_than_demanded_does_not_start(tmp_path: Path) -> None:
    """A filter hides Landlock from the worker, as if the host's kernel were old."""
    blocked = "import sys, errno, struct; " + _BLOCKING
    with codegen_farm(tmp_path, sandbox=f"required:{ALL}") as farm:
        worker = farm.start_code(blocked, name="weak")
        assert worker.wait(TIMEOUT_S) == 2
        assert b"demands" in farm.log("weak")


_BLOCKING = (
    "from codegen_svc.sandbox import seccomp, system_calls as calls;"
    "calls.deny_new_privileges();"
    "seccomp._DENIED.clear(); seccomp._DENIED['landlock'] = (444, 444);"
    "calls.install_filter(seccomp.filter_program(0, may_start_programs=True));"
    "from codegen_svc.worker.__main__ import main; sys.exit(main(['--queue', 'echo']))"
)
