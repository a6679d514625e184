"""Autotuned kernels: a job asks about the subject that launches measure, and disks answer it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kernelfarm.client import counters
from kernelfarm.client.disk.files import write_sealed
from kernelfarm.client.disk.tier import Confirmation
from kernelfarm.client.farm.access import STATE_SUFFIX, FarmAccess, farm_file
from kernelfarm.client.farm.checked_tuning import SignedTuning
from kernelfarm.client.farm.client import FarmClient
from kernelfarm.client.farm.compile_options import CompileOptions
from kernelfarm.client.farm.compiled_program import CompiledProgram
from kernelfarm.client.farm.invalidation_state import InvalidationState
from kernelfarm.client.farm.tuning_client import FarmTuning, ReporterName
from kernelfarm.client.farm.tuning_tiers import TieredTuning
from kernelfarm.client.runtime.program import TuningPolicy
from kernelfarm.client.runtime.tuning import WINNERS
from kernelfarm.client.settings import ClientSettings
from kernelfarm.client.warming.certificate import TuningCoverage
from kernelfarm.client.warming.retry import Retry
from kernelfarm.client.warming.tuning import FleetChoices, TunedGraph
from kernelfarm.signing import Space, variant_id
from kernelfarm.signing.key_files import PUBLIC_KEYS
from kernelfarm.signing.manifest import Manifest, blob_ref
from kernelfarm.tuning import TuningSubject
from tests.support.client_process import new_process
from tests.support.farm import Farm, wait_until
from tests.support.simulated_device import SimulatedDevice, added, compiled_for
from tests.support.user_kernel_stand_ins import CompiledHere

COSTS_MS = {32: 3.0, 64: 1.0, 128: 2.0}
FASTEST = 1
NOBODY = "127.0.0.1:9"


@pytest.fixture
def client(farm: Farm) -> Iterator[FarmClient]:
    begin_anew()
    with FarmClient(ClientSettings(endpoint=farm.endpoint)) as opened:
        yield opened
    begin_anew()


def begin_anew() -> None:
    """As in a new process."""
    WINNERS.clear()
    counters.reset()
    torch._dynamo.reset()


def vectors(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Arguments of a size, so of a subject, that no other test has."""
    return torch.randn(size), torch.randn(size)


def measured(client: FarmClient, size: int, clients: int) -> CompiledHere:
    """The compiled function of so many processes, which measured it one after another."""
    for _ in range(clients):
        begin_anew()
        name = ReporterName()
        policy = TuningPolicy(fleet=lambda name=name: FarmTuning(client, reporter=name))
        compiled = compiled_for(added, SimulatedDevice(COSTS_MS), tuning=policy)
        compiled(*vectors(size))
        wait_until(lambda: counters.snapshot().get("tuning.fleet.reported") == 1, 20, "the report")
    return compiled


def chosen(client: FarmClient, compiled: CompiledHere, device: str) -> TuningCoverage | None:
    """What a job states about the only graph of a function."""

    def find(key: bytes, options: CompileOptions) -> CompiledProgram:
        raise AssertionError("no product is tuned")

    (graph,), (plan,) = compiled.graphs, compiled.plans
    manifest = Manifest(
        *("default", Space.PROGRAMS, bytes(32), variant_id(()), (), (), 0, ""),
        *(blob_ref(b""), (), 0.0, 0),
    )
    program = CompiledProgram(b"", "cuda:sm_90a", plan, (), (), "hit", "", 0, manifest, b"")
    fleet = FleetChoices(client, Retry(1), find)
    return fleet.coverage(TunedGraph(graph.graph, (), CompileOptions()), program, device)


def test_a_job_finds_what_clients_chose_for_an_autotuned_kernel(client: FarmClient) -> None:
    compiled = measured(client, 68, clients=1)
    found = chosen(client, compiled, "a simulated device")
    assert found is not None and (found.state, found.key, found.reason) == ("present", "", "")
    assert [subject.winner for subject in found.subjects] == [FASTEST]
    other = chosen(client, compiled, "another device")
    assert other is not None and (other.state, other.subjects) == ("none", ())
    assert "has not chosen all of 1 products and kernels" in other.reason


def on_disk(found: SignedTuning, farm: Farm, folder: Path) -> FarmAccess:
    """A client that reaches no farm, with a record on its disk as an import leaves it."""
    keys = farm.keys / PUBLIC_KEYS
    access = new_process(NOBODY, folder, trusted_keys_file=keys).access
    manifest = found.manifest
    assert access.disk is not None
    access.disk.put(
        manifest, Confirmation(manifest.epoch), {blob_ref(found.content).sha256: found.content}
    )
    known = InvalidationState(manifest.incarnation, manifest.epoch, manifest.epoch, time.time())
    path = farm_file(folder, access.settings, STATE_SUFFIX)
    write_sealed(path, known.to_json().encode())
    return new_process(NOBODY, folder, trusted_keys_file=keys).access


@pytest.mark.parametrize(("clients", "size"), [(1, 72), (3, 76)])
def test_a_launch_without_a_farm_takes_the_winner_from_disk(
    client: FarmClient, farm: Farm, tmp_path: Path, clients: int, size: int
) -> None:
    """Also one of few reports, because nobody else can be asked."""
    stated = chosen(client, measured(client, size, clients), "a simulated device")
    assert stated is not None
    (subject,) = stated.subjects
    asked = TuningSubject(bytes.fromhex(subject.digest), stated.device, subject.candidates)
    record = FarmTuning(client).record(asked)
    assert record is not None and record.record.state.reports == clients
    begin_anew()
    access = on_disk(record, farm, tmp_path / "disk")
    device = SimulatedDevice({32: 1.0, 64: 3.0, 128: 3.0})  # its own measurement would differ
    policy = TuningPolicy(fleet=lambda: TieredTuning(access))
    compiled_for(added, device, tuning=policy)(*vectors(size))
    assert device.launched == [64]
    seen = counters.snapshot()
    assert seen["tuning.disk.winners"] == 1 and seen.get("tuning.measured", 0) == 0
