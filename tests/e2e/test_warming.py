"""A warming job, its certificate and its bundle, with a real farm for the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import kernelfarm
from kernelfarm.client.farm.cache_client import CacheAdmin
from kernelfarm.errors import CallerError
from tests.support.farm import Farm
from tests.support.trace_machines import traces_made
from tests.support.warmed_models import scaled
from tests.support.warming_job import INCOMPLETE, NOBODY, TARGET, Job, warming_job


@pytest.fixture
def job(farm: Farm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    with warming_job(farm, tmp_path, monkeypatch) as job:
        yield job


def test_a_replica_with_an_empty_disk_neither_traces_nor_compiles_after_a_job(
    job: Job, tmp_path: Path
) -> None:
    done = job.warm()
    assert done.exit_code == 0, done.output
    assert job.certificate.is_complete
    (entry,) = job.certificate.entries
    assert entry.trace.state == "present" and entry.kernels and entry.toolchains
    assert "1 of 1 programs present" in done.stdout
    jobs = job.kernel_jobs()
    seen = job.replica(job.farm.endpoint, tmp_path / "disk")
    assert (seen["warm.farm.hits"], seen["farm.prefetched"]) == (1, 1)
    assert traces_made() == 0
    assert job.kernel_jobs() == jobs


def test_a_job_publishes_packages_with_which_a_replica_traces_nothing(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranged = "    sizes: {rows: {min: 2, max: 64}}\n    inputs: [[rows, 8]]\n"
    job.write(job.model(), job.model("ranged", ranged), job.model("broken", breaks=True))
    assert job.warm("--packages").exit_code == 0
    stated, ranged_one, *broken = job.certificate.entries
    packages = [entry.package for entry in (stated, ranged_one)]
    assert [package and package.state for package in packages] == ["present"] * 2, packages
    assert {e.package and e.package.reason for e in broken} == {"the model has 2 graphs", None}
    # A second run finds them.
    again = job.warm("--packages")
    assert "capture of an earlier run" in again.output
    assert [e.package for e in job.certificate.entries[:2]] == packages
    monkeypatch.setenv("KERNELFARM_PACKAGES", "trusted")
    jobs = job.kernel_jobs()
    seen = job.replica(job.farm.endpoint, tmp_path / "disk", kernelfarm.packaged)
    assert (seen["packages.farm.hits"], seen["packages.loaded"], seen["farm.prefetched"]) == (
        1,
    ) * 3
    assert (traces_made(), job.kernel_jobs()) == (0, jobs)
    assert torch._dynamo.utils.counters["frames"]["total"] == 0
    # The certificate is checked with the packages.
    certificate = str(job.folder / "m.certificate.json")
    assert job.run("verify-coverage", certificate).exit_code == 0
    with CacheAdmin(job.farm.endpoint) as admin:
        admin.invalidate(["pass:package"])
    checked = job.run("verify-coverage", certificate)
    assert checked.exit_code == INCOMPLETE
    assert "the farm does not have it" in checked.output


def test_a_second_run_captures_and_compiles_nothing(job: Job) -> None:
    assert job.warm().exit_code == 0
    jobs, first = job.kernel_jobs(), job.certificate
    again = job.warm()
    assert "capture of an earlier run, 1 programs" in again.output
    assert f"{TARGET}: hit, 0 kernels compiled" in again.output
    assert job.kernel_jobs() == jobs
    assert job.certificate.entries == first.entries
    assert "captured, 1 programs" in job.warm("--fresh").output


def test_a_range_of_sizes_is_one_program_and_each_listed_size_another(job: Job) -> None:
    ranged = "    sizes: {rows: {min: 1, max: 64}}\n    inputs: [[rows, 8]]\n"
    listed = "    sizes: {rows: [3, 5]}\n    inputs: [[rows, 8]]\n    dtypes: [f32, bf16]\n"
    job.write(job.model("ranged", ranged), job.model("listed", listed))
    assert job.warm().exit_code == 0
    entries = job.certificate.entries
    assert [(e.dtype, e.sizes) for e in entries] == [
        ("", {"rows": "1..64"}),
        ("f32", {"rows": "3"}),
        ("f32", {"rows": "5"}),
        ("bf16", {"rows": "3"}),
        ("bf16", {"rows": "5"}),
    ]
    assert len({entry.key for entry in entries}) == len(entries)


def test_each_graph_of_a_model_is_warmed(job: Job) -> None:
    job.write(job.model(breaks=True))
    assert job.warm().exit_code == 0
    assert [entry.graph for entry in job.certificate.entries] == [0, 1]


# After a graph break, Dynamo reads the gradient of a result of the first graph.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize(("breaks", "graphs"), [(False, 2), (True, 4)])
def test_a_training_replica_compiles_nothing_after_a_job(
    job: Job, tmp_path: Path, breaks: bool, graphs: int
) -> None:
    job.write(job.model("scaled", "    train: true\n", breaks=breaks))
    done = job.warm("--packages")
    assert done.exit_code == 0, done.output
    assert [entry.graph for entry in job.certificate.entries] == list(range(graphs))
    assert all("gradients" in entry.trace.reason for entry in job.certificate.entries)
    first = job.certificate.entries[0]
    assert first.package and "training" in first.package.reason
    jobs = job.kernel_jobs()
    seen = job.training_replica(job.farm.endpoint, tmp_path / "disk", breaks=breaks)
    assert (seen["farm.hits"], seen.get("farm.misses", 0)) == (graphs, 0)
    assert job.kernel_jobs() == jobs


def test_a_model_without_gradients_has_no_training_step(job: Job) -> None:
    job.write(job.model("scaled", "    train: true\n", frozen=True))
    assert job.warm().exit_code == INCOMPLETE
    assert "no result requires a gradient" in job.certificate.entries[0].reason


def test_a_pt2_file_is_warmed_without_a_trace(job: Job) -> None:
    model, args = scaled(job.number)
    torch.export.save(torch.export.export(model, args), job.folder / "scaled.pt2")
    job.write("  - name: saved\n    file: scaled.pt2\n")
    assert job.warm().exit_code == 0
    (entry,) = job.certificate.entries
    assert entry.trace.state == "none" and ".pt2" in entry.trace.reason


def test_a_model_that_cannot_be_captured_is_missing_with_its_reason(job: Job) -> None:
    job.write(job.model(), "  - name: broken\n    entry: tests.support.warmed_models:broken\n")
    done = job.warm()
    assert done.exit_code == INCOMPLETE
    assert [entry.is_present for entry in job.certificate.entries] == [True, False]
    assert "ValueError: no weights here" in job.certificate.entries[1].reason
    checked = job.run("verify-coverage", str(job.folder / "m.certificate.json"))
    assert checked.exit_code == INCOMPLETE
    assert "1 of 2 present" in checked.stdout


def test_what_was_invalidated_is_missing_until_the_next_run(job: Job) -> None:
    assert job.warm().exit_code == 0
    path = str(job.folder / "m.certificate.json")
    assert job.run("verify-coverage", path).exit_code == 0
    with CacheAdmin(job.farm.endpoint) as admin:
        admin.invalidate([f"model:scaled@{job.number}"])
    checked = job.run("verify-coverage", path)
    assert checked.exit_code == INCOMPLETE
    assert "0 of 1 present" in checked.stdout
    again = job.warm()  # its capture is older than the invalidation, so it captures again
    assert again.exit_code == 0, again.output
    assert "capture of an earlier run" in again.output and "captured, 1 programs" in again.output
    assert job.certificate.is_complete


def test_a_bundle_on_disk_starts_a_client_without_a_farm(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert job.warm("--packages").exit_code == 0
    bundle, certificate = tmp_path / "bundle.tar", str(job.folder / "m.certificate.json")
    written = job.run("export-bundle", str(bundle), "--certificate", certificate)
    assert "1 programs, 1 traces, 1 packages" in written.stdout
    job.environment.setenv("KERNELFARM_DISK_CACHE_DIR", str(tmp_path / "disk"))
    imported = job.run("import-bundle", str(bundle), "--disk", endpoint=NOBODY)
    assert imported.exit_code == 0, imported.output
    seen = job.replica(NOBODY, tmp_path / "disk")
    assert (seen["disk.hits"], seen["warm.disk.hits"]) == (1, 1)
    assert traces_made() == 0
    # The packages have code: only a client that opted in runs them.
    monkeypatch.setenv("KERNELFARM_PACKAGES", "trusted")
    seen = job.replica(NOBODY, tmp_path / "disk", kernelfarm.packaged)
    assert (seen["disk.hits"], seen["packages.disk.hits"], seen["packages.loaded"]) == (1, 1, 1)
    assert torch._dynamo.utils.counters["frames"]["total"] == 0


def test_a_farm_has_what_it_exported_and_imports_it_after_its_cache_was_lost(
    job: Job, tmp_path: Path
) -> None:
    assert job.warm("--packages").exit_code == 0
    bundle, certificate = str(tmp_path / "bundle"), str(job.folder / "m.certificate.json")
    job.run("export-bundle", bundle, "--certificate", certificate)
    present = job.run("import-bundle", bundle)
    assert "0 programs imported, 1 were there, 1 traces, 0 packages" in present.stdout
    assert "it has code that clients would run: sign it with --packages" in present.stdout
    with CacheAdmin(job.farm.endpoint) as admin:
        admin.invalidate([f"model:scaled@{job.number}"])
    refused = job.run("import-bundle", bundle)
    assert refused.exit_code == INCOMPLETE
    assert "which this farm invalidated" in refused.stdout
    jobs = job.kernel_jobs()
    accepted = job.run("import-bundle", bundle, "--accept-invalidated", "--packages")
    assert "1 programs imported, 0 were there, 1 traces, 1 packages" in accepted.stdout
    assert job.run("verify-coverage", certificate).exit_code == 0
    assert job.kernel_jobs() == jobs


def test_a_revoked_package_is_not_imported_again(job: Job, tmp_path: Path) -> None:
    assert job.warm("--packages").exit_code == 0
    bundle, certificate = str(tmp_path / "bundle"), str(job.folder / "m.certificate.json")
    job.run("export-bundle", bundle, "--certificate", certificate)
    with CacheAdmin(job.farm.endpoint) as admin:
        admin.invalidate(["pass:package"])
    imported = job.run("import-bundle", bundle, "--packages")
    assert "1 were there, 1 traces, 0 packages" in imported.stdout
    assert "it depends on something that this farm invalidated" in imported.stdout
    again = job.run("import-bundle", bundle, "--packages", "--accept-invalidated")
    assert "1 were there, 1 traces, 1 packages" in again.stdout


@pytest.mark.parametrize("command", ["warm", "verify-coverage", "export-bundle", "import-bundle"])
def test_a_missing_file_is_an_error_that_names_it(job: Job, command: str) -> None:
    more: dict[str, list[Any]] = {"export-bundle": ["--certificate", "none.json"]}
    with pytest.raises(CallerError, match="none"):
        job.run(command, "none.file", *more.get(command, []))
