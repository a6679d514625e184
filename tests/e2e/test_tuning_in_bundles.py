"""The fleet's choices leave the farm: in a warming job, in bundles, on disks and at other farms."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from kernelfarm.cli import make_app
from kernelfarm.client import counters
from kernelfarm.client.compile_model import connect
from kernelfarm.client.farm.compile_options import CompileOptions
from kernelfarm.client.farm.tuning_client import FarmTuning, ReporterName
from kernelfarm.client.loaders.by_device import host_support
from kernelfarm.client.loaders.cpu_timer import CpuTimer
from kernelfarm.client.programs import finder
from kernelfarm.client.programs.product_subjects import ProductSubject, product_subjects
from kernelfarm.client.programs.product_tuner import TUNER
from kernelfarm.client.warming.certificate import ProgramCoverage, TuningCoverage
from kernelfarm.ir.program_ir import ExternCall
from kernelfarm.signing import Keyring, Signer, Space, new_signer
from kernelfarm.signing.key_files import PROGRAM_KEY, PUBLIC_KEYS, keyring_to_text, read_signer
from kernelfarm.v1 import manifest_pb2
from kernelfarm.wire.manifest import manifest_from_proto
from kernelfarm.wire.tuning import tuning_record_from_bytes, tuning_subject_to_proto
from tests.support.farm import TIMEOUT_S, Farm, running_farm
from tests.support.rewritten_bundles import with_records
from tests.support.tampering_proxy import TamperingFarm
from tests.support.trace_machines import counted
from tests.support.traced_graphs import traced_one
from tests.support.tuning_callers import TuningCaller
from tests.support.tuning_records import record_of, signed_record
from tests.support.warmed_models import layer
from tests.support.warming_job import INCOMPLETE, NOBODY, TARGET, Job, warming_job

LIBRARY, OWN = 0, 1
PRODUCTS = 2
"""Products of the layer."""

# Tests of tuned products have narrower layers at the same farm.
_widths = count(1024, 16)


@dataclass
class Fleet:
    """A layer whose products clients of a farm have measured, and the job that warms it."""

    job: Job
    width: int

    @property
    def subjects(self) -> tuple[ProductSubject, ...]:
        model, args = layer(self.width)
        with torch.no_grad():
            captured = traced_one(model, *args)
        return product_subjects(captured, host_support(), CompileOptions(), CpuTimer())

    def report(self, winner: int, clients: int = 3) -> None:
        """Lets clients report that a candidate is a hundred times as fast as the other one."""
        times_ms = [1.0 if number == winner else 100.0 for number in (LIBRARY, OWN)]
        with connect(self.job.farm.endpoint, TIMEOUT_S) as farm:
            for subject in self.subjects:
                for _ in range(clients):
                    FarmTuning(farm, reporter=ReporterName()).report(subject.tuned, times_ms)

    def warm(self, *devices: str) -> Any:
        stated = json.dumps({TARGET: list(devices or (CpuTimer().device(),))})
        (self.job.folder / "m.yaml").write_text(
            f'format: 1\ntargets: ["{TARGET}"]\noptions: {{products: tuned}}\ndevices: {stated}\n'
            f"models:\n  - name: layer\n    entry: tests.support.warmed_models:layer\n"
            f"    arguments: {{width: {self.width}}}\n"
        )
        return self.job.warm()

    @property
    def entry(self) -> ProgramCoverage:
        """The only entry of the certificate."""
        (entry,) = self.job.certificate.entries
        return entry

    @property
    def chosen(self) -> TuningCoverage:
        """What the certificate states about the only device."""
        (chosen,) = self.entry.tuning or ()
        return chosen

    def export(self, name: str = "bundle", endpoint: str = "") -> Any:
        """Writes a bundle, and returns what the command said."""
        path = self.job.folder / name
        certificate = str(self.job.folder / "m.certificate.json")
        command = ("export-bundle", str(path), "--certificate", certificate)
        return self.job.run(*command, endpoint=endpoint)

    def to_disk(self, bundle: str, disk: Path, endpoint: str = NOBODY, *more: str) -> Any:
        """Imports a bundle for the clients of this endpoint, by default one of no farm."""
        self.job.environment.setenv("KERNELFARM_DISK_CACHE_DIR", str(disk))
        path = str(self.job.folder / bundle)
        return self.job.run("import-bundle", path, "--disk", *more, endpoint=endpoint)

    def replica(self, endpoint: str, disk: Path) -> dict[str, int]:
        """The counters of a client whose products are tuned, and which measures nothing."""
        TUNER.clear()
        self.job.begin_replica(endpoint, disk)
        model, args = layer(self.width)
        options = {"products": "tuned", "autotune": "first", "mode": "strict"}
        fast = torch.compile(model, backend="kernelfarm", options=options)
        with torch.no_grad():
            torch.testing.assert_close(fast(*args), model(*args), rtol=1e-5, atol=1e-6)
        return counted()


def library_steps() -> int:
    """The framework's steps in the only program of this process."""
    ((loaded),) = [made.result() for made in finder._store._programs.values()]
    return sum(isinstance(step, ExternCall) for step in loaded.plan.steps)


@pytest.fixture
def fleet(farm: Farm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    (tmp_path / "job").mkdir()
    with warming_job(farm, tmp_path / "job", monkeypatch) as job:
        yield Fleet(job, next(_widths))
    TUNER.clear()


def signer_of(farm: Farm) -> Signer:
    return read_signer(farm.keys / PROGRAM_KEY, Space.PROGRAMS)


@pytest.mark.parametrize("winner", [LIBRARY, OWN])
def test_a_machine_without_a_farm_runs_what_the_fleet_chose(
    fleet: Fleet, tmp_path: Path, winner: int
) -> None:
    fleet.report(winner)
    done = fleet.warm()
    assert done.exit_code == 0, done.output
    assert fleet.chosen.state == "present" and fleet.chosen.key not in ("", fleet.entry.key)
    assert [subject.winner for subject in fleet.chosen.subjects] == [winner] * PRODUCTS
    written = fleet.export("bundle.tar")
    assert written.exit_code == 0, written.output
    assert "2 programs, 1 traces, 0 packages, 2 tuning records" in written.stdout
    shown = CliRunner().invoke(make_app(), ["show-bundle", str(fleet.job.folder / "bundle.tar")])
    line = f" on {CpuTimer().device()!r}: candidate {winner} of 2, 3 reports, settled"
    assert shown.stdout.count(line) == PRODUCTS
    imported = fleet.to_disk("bundle.tar", tmp_path / "disk")
    assert imported.exit_code == 0, imported.output
    assert "2 programs, 1 traces, 0 packages and 2 tuning records" in imported.stdout
    seen = fleet.replica(NOBODY, tmp_path / "disk")
    assert (seen["tuning.disk.winners"], seen["tuning.products.tuned"]) == (PRODUCTS, 1)
    assert (seen["warm.disk.hits"], seen["disk.hits"]) == (1, 1)
    assert not any(name.startswith("tuning.fleet.failures") for name in seen), seen
    assert library_steps() == (PRODUCTS if winner == LIBRARY else 0)


def test_another_farm_decides_at_once_by_what_a_bundle_brought(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.report(OWN)
    assert fleet.warm().exit_code == 0
    assert fleet.export().exit_code == 0
    keys = {"KERNELFARM_IMPORT_KEYS_FILE": str(fleet.job.farm.keys / PUBLIC_KEYS)}
    with running_farm(tmp_path / "other", "cpu", **keys) as other:
        bundle = str(fleet.job.folder / "bundle")
        imported = fleet.job.run("import-bundle", bundle, endpoint=other.endpoint)
        assert imported.exit_code == 0, imported.output
        assert "2 programs imported" in imported.stdout
        assert "2 tuning records with 6 new reports" in imported.stdout
        again = fleet.job.run("import-bundle", bundle, endpoint=other.endpoint)
        assert "2 tuning records with 0 new reports" in again.stdout
        caller = TuningCaller(other.endpoint)
        for subject in fleet.subjects:
            found = caller.look_up(tuning_subject_to_proto(subject.tuned))
            assert (found.winner.candidate, found.winner.reports) == (OWN, 3)
            assert not found.should_measure and found.retry_after_ms == 0
        caller.close()
        monkeypatch.setenv("KERNELFARM_TRUSTED_KEYS_FILE", str(other.keys / PUBLIC_KEYS))
        seen = fleet.replica(other.endpoint, tmp_path / "disk")
        assert (seen["tuning.products.tuned"], seen["farm.hits"]) == (1, 1)
        assert seen.get("farm.misses", 0) == seen.get("tuning.disk.winners", 0) == 0
        assert library_steps() == 0


@pytest.mark.parametrize("what", ["signer", "times", "namespace", "incarnation", "age", "bytes"])
def test_a_record_that_was_tampered_with_is_left_out_and_nothing_else(
    fleet: Fleet, tmp_path: Path, what: str
) -> None:
    """Programs are imported all the same, and clients without a choice run that of `auto`."""
    fleet.report(OWN)
    assert fleet.warm().exit_code == 0
    assert fleet.export().exit_code == 0

    def lied(content: bytes) -> bytes:
        found = manifest_pb2.SignedVariant.FromString(content)
        record = tuning_record_from_bytes(found.content)
        manifest = manifest_from_proto(found.manifest)
        lie = record_of(record.subject, *([(1, 10**6)] * 3))
        signer, stated = signer_of(fleet.job.farm), {"incarnation": manifest.incarnation}
        match what:
            case "signer":
                signer = new_signer(Space.PROGRAMS)
            case "times":
                sent = signed_record(signer, lie)
                return replaced(found, sent.content)
            case "namespace":
                stated["namespace"] = "default/acme"
            case "age":
                changes = {**stated, "namespace": "default", "not_after_s": int(time.time()) - 1}
                return signed_record(signer, lie, **changes).SerializeToString()
            case "incarnation":
                stated = {"incarnation": "ab" * 16}
            case _:
                return b"\0" * 100
        changes = {"namespace": "default", **stated}
        return signed_record(signer, lie, **changes).SerializeToString()

    with_records(fleet.job.folder / "bundle", fleet.job.folder / "lies", lied)
    imported = fleet.to_disk("lies", tmp_path / "disk")
    assert imported.exit_code == 0, imported.output
    assert "2 programs, 1 traces, 0 packages and 0 tuning records" in imported.stdout
    assert imported.stdout.count("left out: tuning record of") == PRODUCTS
    seen = fleet.replica(NOBODY, tmp_path / "disk")
    assert seen.get("tuning.products.tuned", 0) == seen.get("tuning.disk.winners", 0) == 0
    assert seen["tuning.products.auto"] == 1


def replaced(found: manifest_pb2.SignedVariant, content: bytes) -> bytes:
    return manifest_pb2.SignedVariant(manifest=found.manifest, content=content).SerializeToString()


def test_an_older_record_replaces_none_on_disk(fleet: Fleet, tmp_path: Path) -> None:
    fleet.report(OWN)
    assert fleet.warm().exit_code == 0
    assert fleet.export().exit_code == 0

    def older(content: bytes) -> bytes:
        found = manifest_pb2.SignedVariant.FromString(content)
        manifest = manifest_from_proto(found.manifest)
        record = record_of(tuning_record_from_bytes(found.content).subject, *([(1, 10**6)] * 3))
        changes: dict[str, Any] = {
            "namespace": "default",
            "incarnation": manifest.incarnation,
            "not_after_s": manifest.not_after_s - 60,
        }
        return signed_record(signer_of(fleet.job.farm), record, **changes).SerializeToString()

    with_records(fleet.job.folder / "bundle", fleet.job.folder / "older", older)
    for name, said in (("bundle", "and 2 tuning records"), ("older", "which is newer")):
        assert said in fleet.to_disk(name, tmp_path / "disk").stdout
    fleet.replica(NOBODY, tmp_path / "disk")
    assert library_steps() == 0


def test_a_bundle_of_a_version_without_records_is_imported(fleet: Fleet, tmp_path: Path) -> None:
    fleet.report(OWN)
    assert fleet.warm().exit_code == 0
    assert fleet.export().exit_code == 0
    with_records(fleet.job.folder / "bundle", fleet.job.folder / "old", lambda _: None)
    imported = fleet.to_disk("old", tmp_path / "disk")
    assert imported.exit_code == 0 and "and 0 tuning records" in imported.stdout
    assert fleet.replica(NOBODY, tmp_path / "disk")["tuning.products.auto"] == 1
    present = fleet.job.run("import-bundle", str(fleet.job.folder / "old"))
    assert "0 tuning records with 0 new reports" in present.stdout


def test_a_choice_of_few_reports_yields_to_a_farm_that_answers(
    fleet: Fleet, tmp_path: Path
) -> None:
    fleet.report(OWN, clients=1)
    assert fleet.warm().exit_code == 0
    assert fleet.export().exit_code == 0
    endpoint = fleet.job.farm.endpoint
    for name, reached in (("alone", NOBODY), ("reached", endpoint)):
        assert fleet.to_disk("bundle", tmp_path / name, reached).exit_code == 0
    seen = fleet.replica(NOBODY, tmp_path / "alone")
    assert (seen["tuning.disk.winners"], seen["tuning.products.tuned"]) == (PRODUCTS, 1)
    assert library_steps() == 0
    fleet.report(LIBRARY)
    seen = fleet.replica(endpoint, tmp_path / "reached")
    assert (seen.get("tuning.disk.winners", 0), seen["tuning.products.tuned"]) == (0, 1)
    assert library_steps() == PRODUCTS


def test_a_farm_older_than_records_is_named_and_programs_are_carried_all_the_same(
    fleet: Fleet,
) -> None:
    fleet.report(OWN)
    assert fleet.warm().exit_code == 0
    assert fleet.export().exit_code == 0
    old = TamperingFarm(fleet.job.farm.endpoint)  # it knows no calls about tuning
    endpoint = old.start()
    try:
        written = fleet.export("without", endpoint)
        assert written.exit_code == INCOMPLETE
        assert "1 programs, 1 traces, 0 packages, 0 tuning records" in written.stdout
        imported = fleet.job.run(
            "import-bundle", str(fleet.job.folder / "bundle"), endpoint=endpoint
        )
    finally:
        old.stop()
    for said in (written.stdout, imported.stdout):
        assert "it is older than its caller; upgrade it" in said


def test_records_of_other_devices_are_left_out_and_counted(fleet: Fleet, tmp_path: Path) -> None:
    fleet.report(OWN)
    assert fleet.warm().exit_code == 0
    assert fleet.export().exit_code == 0
    other = fleet.to_disk("bundle", tmp_path / "disk", NOBODY, "--device", "another, driver 1")
    assert "0 packages and 0 tuning records" in other.stdout
    assert f"left out: 2 tuning records of {TARGET}: of other devices" in other.stdout
    own = fleet.to_disk("bundle", tmp_path / "disk", NOBODY, "--device", CpuTimer().device())
    assert "0 packages and 2 tuning records" in own.stdout and "left out" not in own.stdout


def test_records_of_a_refused_program_are_left_out_and_counted(
    fleet: Fleet, tmp_path: Path
) -> None:
    fleet.report(OWN)
    assert fleet.warm().exit_code == 0
    assert fleet.export().exit_code == 0
    # Keys of another farm: neither programs nor records are trusted.
    keyring = Keyring((new_signer(Space.PROGRAMS).trusted,))
    path = tmp_path / "public.json"
    path.write_text(keyring_to_text(keyring.keys))
    fleet.job.environment.setenv("KERNELFARM_TRUSTED_KEYS_FILE", str(path))
    imported = fleet.to_disk("bundle", tmp_path / "disk")
    assert imported.exit_code == INCOMPLETE
    assert f"left out: 2 tuning records of {TARGET}: their program was refused" in imported.stdout


def test_an_export_says_which_choices_it_leaves_out(fleet: Fleet) -> None:
    fleet.report(OWN)
    assert fleet.warm().exit_code == 0
    fleet.report(LIBRARY, clients=6)  # the fleet changes its mind
    written = fleet.export()
    assert written.exit_code == INCOMPLETE
    assert "1 programs, 1 traces, 0 packages, 0 tuning records" in written.stdout
    assert "left out: layer graph 0" in written.stdout
    assert "the fleet now chooses candidate 0; the certificate states 1" in written.stdout
    assert fleet.warm().exit_code == 0
    assert fleet.export("again").exit_code == 0


def test_an_export_without_the_chosen_program_leaves_its_records_out(fleet: Fleet) -> None:
    fleet.report(OWN)
    assert fleet.warm().exit_code == 0
    path = fleet.job.folder / "m.certificate.json"
    path.write_text(path.read_text().replace(fleet.chosen.key, "ab" * 32))
    written = fleet.export()
    assert written.exit_code == INCOMPLETE
    assert "1 programs, 1 traces, 0 packages, 0 tuning records" in written.stdout
    assert f"left out: layer graph 0 {TARGET}, tuning on" in written.stdout
    assert "abababababababab" in written.stdout


def test_a_job_says_what_the_fleet_has_not_chosen_yet(fleet: Fleet) -> None:
    fleet.report(OWN)
    done = fleet.warm(CpuTimer().device(), "a device of nobody")
    assert done.exit_code == 0, done.output
    known, unknown = fleet.entry.tuning or ()
    assert (known.state, unknown.state, unknown.subjects) == ("present", "none", ())
    assert "the fleet has not chosen all of 2 products and kernels yet" in unknown.reason
    assert "tuning none  a device of nobody: 0 subjects" in done.stdout
    certificate = str(fleet.job.folder / "m.certificate.json")
    assert fleet.job.run("verify-coverage", certificate).exit_code == 0
    assert fleet.export().exit_code == INCOMPLETE
    assert counters.snapshot().get("tuning.measured", 0) == 0
