"""Processes that compile several kernels: one of each priority, with the next kernel sent ahead."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from codegen_svc.sandbox.compilation import Compilation, CompileJob
from codegen_svc.sandbox.compiler import SandboxedBackend
from codegen_svc.sandbox.connection import TimeLimits
from codegen_svc.settings import WorkerSettings
from kernelfarm.errors import KernelRejectedError
from kernelfarm.wire.job import job_to_bytes
from tests.support.codegen_calls import TARGET
from tests.support.codegen_processes import PLUGIN
from tests.support.fresh_kernels import fresh_kernel

LIMITS = TimeLimits(wall_s=2.0, processor_s=5)
LONG_NAME = "plain_" + "x" * 5000


@pytest.fixture(scope="module")
def gates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gates")


@pytest.fixture(scope="module")
def backend(gates: Path) -> Iterator[SandboxedBackend]:
    path = os.pathsep.join([str(PLUGIN), str(PLUGIN.parents[2])])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        patch.setenv("ECHO_GATES", str(gates))
        patch.setenv("ECHO_STAYS", "ahead")
        limits = WorkerSettings().sandbox_limits()
        started = SandboxedBackend("echo", limits, demanded="required:limits", wall_s=5.0)
        yield started
        started.close()


@pytest.fixture(autouse=True)
def used_process(backend: SandboxedBackend, request: pytest.FixtureRequest) -> None:
    """A process of the namespace of each test has compiled a kernel before."""
    name = request.node.name.partition("[")[0]
    assert backend.begin(job(f"plain_before_{name}")).variants()


def job(name: str, namespace: str = "default", limits: TimeLimits = LIMITS) -> CompileJob:
    return CompileJob(job_to_bytes(fresh_kernel(name), TARGET), name, TARGET, limits, namespace)


def notes(compilation: Compilation) -> tuple[str, ...]:
    return compilation.variants()[-1].notes


def number_in_process(compilation: Compilation) -> int:
    """Which kernel of its process it was, from the echo vendor's note."""
    return int(notes(compilation)[0].split()[1])


def compilations(gates: Path, name: str) -> int:
    log = gates / f"{name}.log"
    return len(log.read_text().splitlines()) if log.exists() else 0


def begun(backend: SandboxedBackend, gates: Path, name: str, **options: object) -> Compilation:
    """A gated kernel whose compilation has begun."""
    compilation = backend.begin(job(name, **options))  # type: ignore[arg-type]
    ends_s = time.monotonic() + 20
    while not (gates / f"{name}.pid").exists():
        assert time.monotonic() < ends_s
        time.sleep(0.005)
    return compilation


def release(gates: Path, name: str) -> None:
    (gates / f"{name}.go").touch()


def wait_for(gates: Path, name: str) -> None:
    """Returns when the compilation of a kernel has begun."""
    ends_s = time.monotonic() + 20
    while not compilations(gates, name):
        assert time.monotonic() < ends_s
        time.sleep(0.005)


def test_the_next_kernel_begins_without_its_worker(backend: SandboxedBackend, gates: Path) -> None:
    first = begun(backend, gates, "gated_a0")
    second = backend.compilation(job("counted_a1"))
    assert second.send_ahead(first)
    assert not compilations(gates, "counted_a1")
    release(gates, "gated_a0")
    wait_for(gates, "counted_a1")
    time.sleep(0.1)  # its result has been sent too, behind the first one
    assert first.variants()[0].launch.symbol == "gated_a0"
    second.begin()
    assert second.variants()[0].launch.symbol == "counted_a1"
    third = backend.begin(job("counted_a2"))
    assert number_in_process(third) == number_in_process(second) + 1
    assert notes(third)[1:] == (), "the folder of each is empty"
    assert compilations(gates, "counted_a1") == 1


@pytest.mark.parametrize(
    ("kind", "reported"),
    [("rejected", "no such instruction"), ("crash", "SIGSEGV")],
)
def test_a_kernel_behind_a_failed_one_is_compiled_once(
    backend: SandboxedBackend, gates: Path, kind: str, reported: str
) -> None:
    occupied = begun(backend, gates, f"gated_{kind}")
    first, second = (backend.compilation(job(name)) for name in (f"{kind}_f0", f"counted_{kind}"))
    assert first.send_ahead(occupied)
    release(gates, f"gated_{kind}")
    assert occupied.variants()
    first.begin()
    is_ahead = second.send_ahead(first)  # not if the process has ended before
    with pytest.raises(KernelRejectedError, match=reported):
        first.variants()
    second.begin()
    assert number_in_process(second) == 1, f"in a fresh process (ahead: {is_ahead})"
    assert compilations(gates, f"{kind}_f0") == 2, "only a fresh process may refuse a kernel"
    assert compilations(gates, f"counted_{kind}") == 1


def test_a_kernel_behind_one_that_takes_too_long(backend: SandboxedBackend, gates: Path) -> None:
    slow = begun(backend, gates, "gated_l0", limits=TimeLimits(0.3, 5))
    second = backend.compilation(job("counted_l1"))
    assert second.send_ahead(slow)
    with pytest.raises(KernelRejectedError, match="longer than"):
        slow.variants()
    second.begin()
    assert number_in_process(second) == 1
    assert compilations(gates, "counted_l1") == 1


def test_the_time_of_the_next_kernel_begins_with_it(backend: SandboxedBackend, gates: Path) -> None:
    first = begun(backend, gates, "gated_t0", limits=TimeLimits(20.0, 25))
    second = backend.compilation(job("gated_t1", limits=TimeLimits(1.0, 5)))
    assert second.send_ahead(first)
    time.sleep(1.2)
    release(gates, "gated_t0")
    assert first.variants()
    second.begin()
    assert not second.has_ended_within(0.3)
    began_s = time.monotonic()
    with pytest.raises(KernelRejectedError, match="longer than"):
        second.variants()
    assert 0.2 < time.monotonic() - began_s < 5


def test_a_recalled_kernel_is_not_used(backend: SandboxedBackend, gates: Path) -> None:
    first = begun(backend, gates, "gated_r0")
    assert backend.compilation(job("gated_r1")).send_ahead(first)
    first.recall_next()
    release(gates, "gated_r0")
    assert first.variants()
    after = backend.begin(job("counted_r2"))
    assert number_in_process(after) == 1, "the process ended with the first kernel"


@pytest.mark.parametrize(
    ("next_job", "why"),
    [
        (job("plain_n0", namespace="other"), "a process never serves two namespaces"),
        (job("plain_n1", limits=TimeLimits(2.0, 5, niceness=5)), "another priority"),
        (job(LONG_NAME), "larger than what a pipe takes at once"),
    ],
    ids=["namespace", "priority", "size"],
)
def test_what_cannot_be_sent_ahead(
    backend: SandboxedBackend, gates: Path, next_job: CompileJob, why: str
) -> None:
    name = f"gated_{why.split(maxsplit=1)[0]}"
    first = begun(backend, gates, name)
    second = backend.compilation(next_job)
    assert not second.send_ahead(first), why
    release(gates, name)
    assert first.variants()
    if next_job.symbol != LONG_NAME:  # too long for the name of its log, too
        second.begin()
        assert second.variants()[0].launch.symbol == next_job.symbol


def test_one_kernel_at_a_time_is_sent_ahead(backend: SandboxedBackend, gates: Path) -> None:
    first = begun(backend, gates, "gated_o0")
    second, third = (backend.compilation(job(name)) for name in ("plain_o1", "plain_o2"))
    assert second.send_ahead(first)
    assert not third.send_ahead(first)
    release(gates, "gated_o0")
    for compilation in (first, second, third):
        if compilation is not first:
            compilation.begin()
        assert compilation.variants()


def test_a_process_of_each_priority_waits_for_kernels(backend: SandboxedBackend) -> None:
    lower = TimeLimits(2.0, 5, niceness=5)
    numbers = [
        number_in_process(backend.begin(job(f"counted_p{number}", limits=limits)))
        for number, limits in enumerate((LIMITS, lower, LIMITS, lower, LIMITS))
    ]
    users, warm_ups = numbers[::2], numbers[1::2]
    assert users == [users[0] + more for more in range(3)]
    assert warm_ups == [warm_ups[0], warm_ups[0] + 1]
