"""Fingerprints cover what shapes results: code of several services, and the environment."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kernelfarm import dtypes, ir, targets
from kernelfarm.service import fingerprint
from tests.support.codegen_processes import PLUGIN

# What is imported beside, and shapes no result.
_BESIDE = {
    *("bounded_text", "cache", "end_task", "errors", "hidden_modules", "internal"),
    *("private_files", "service", "signing", "spans", "tuning", "v1"),
}


def covered() -> set[str]:
    return {package.__name__.split(".")[1] for package in fingerprint._SHARED}


@pytest.mark.parametrize(
    "module",
    [
        "codegen_svc.backends.ascend.backend",
        "codegen_svc.backends.cpu.backend",
        "codegen_svc.backends.cuda.backend",
        "codegen_svc.backends.rocm.backend",
        "codegen_svc.worker.build_kernel",
        "frontend_svc.flow.compile_flow",
        "optimizer_svc.service",
    ],
)
def test_shared_code_is_in_the_fingerprint_of_a_service(module: str) -> None:
    reported = "print(*(name for name in sys.modules if name.startswith('kernelfarm.')))"
    ran = subprocess.run(
        [sys.executable, "-c", f"import sys, {module}; {reported}"],
        capture_output=True,
        text=True,
        check=True,
    )
    used = {name.split(".")[1] for name in ran.stdout.split()}
    assert {"dtypes", "ir"} <= used
    assert used - _BESIDE <= covered()


def test_packages_count_with_their_tables_and_modules_with_their_file() -> None:
    assert [path.name for _, path in fingerprint.sources_of(dtypes)] == ["dtypes.py"]
    names = [name for name, _ in fingerprint.sources_of(targets)]
    assert "kernelfarm.targets/__init__.py" in names
    assert "kernelfarm.targets/cuda_sm_90a.toml" in names
    assert "kernelfarm.ir/philox.py" in [name for name, _ in fingerprint.sources_of(ir)]


def test_a_changed_fact_of_an_installed_vendors_chip_changes_the_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = fingerprint.service_fingerprint(dtypes)
    site = Path(shutil.copytree(PLUGIN, tmp_path / "site"))
    monkeypatch.syspath_prepend(site)
    # Another test of this process may have imported the original.
    monkeypatch.delitem(sys.modules, "echo_chips", raising=False)
    installed = fingerprint.service_fingerprint(dtypes)
    chip = site / "echo_chips" / "echo_one.toml"
    chip.write_text(f"{chip.read_text()}max_sorted_elems = 64\n")
    changed = fingerprint.service_fingerprint(dtypes)
    sys.modules.pop("echo_chips", None)
    assert len({before, installed, changed}) == 3
