"""The commands as a user runs them: installed scripts, exit codes, and what they print.

Those that import PyTorch run in a process that has imported it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from examples.real_inputs import function_h
from kernelfarm.cli import COMMANDS, make_app
from tests.support.farm import TIMEOUT_S
from tests.support.page_data import data_blocks, linked_stages
from tests.support.torch_children import run_python

KERNELFARM = str(Path(sys.executable).with_name("kernelfarm"))
NOBODY = "127.0.0.1:9"  # the discard port: nothing listens there
TARGETS = ("cpu:aarch64", "cuda:sm_89", "rocm:gfx1201", "ascend:910b")
BINARIES = {"cpu": "so", "cuda": "cubin", "rocm": "hsaco", "ascend": "kernel.o"}


def run(*command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        env={**os.environ, "COLUMNS": "120", **environment},
        capture_output=True,
        text=True,
        timeout=2 * TIMEOUT_S,
        check=False,
    )


def run_compile(*arguments: object) -> subprocess.CompletedProcess[str]:
    words = (KERNELFARM, "compile", *map(str, arguments))
    return run_python(words, {**os.environ, "COLUMNS": "120"}, timeout_s=2 * TIMEOUT_S)


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`h` in float16, saved as users save models."""

    class Model(torch.nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return source.model(a, b)

    source = function_h().half()
    path = tmp_path_factory.mktemp("saved") / "h.pt2"
    torch.export.save(torch.export.export(Model(), source.args), path)
    return path


def test_help_lists_every_command() -> None:
    shown = run(KERNELFARM, "--help")
    assert shown.returncode == 0
    for command in COMMANDS:
        assert f" {command} " in shown.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_has_examples(command: str) -> None:
    shown = CliRunner(env={"COLUMNS": "120"}).invoke(make_app(), [command, "--help"])
    assert shown.exit_code == 0
    examples = shown.stdout.partition("Examples")[2]
    assert f"kernelfarm {command}" in examples


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_file_compiles_for_four_vendors_and_is_explained(
    vendor_endpoint: str, model_file: Path, tmp_path: Path
) -> None:
    reference = [part for target in TARGETS for part in ("--target", target)]
    done = run_compile(model_file, *reference, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "stub: " in done.stdout
    programs = json.loads((tmp_path / "manifest.json").read_text())["programs"]
    assert [program["target"] for program in programs] == list(TARGETS)
    for program in programs:
        binary = BINARIES[program["target"].partition(":")[0]]
        for kernel in program["kernels"]:
            for variant in kernel["variants"]:
                assert variant["binary"] == binary
                content = (tmp_path / variant["stages"][binary]).read_bytes()
                assert content.startswith(b"\x7fELF")
    shown = run(KERNELFARM, "explain", tmp_path, "--target", "ascend:910b", "--stage", "linalg")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count("func.func @") == len(programs[-1]["kernels"])
    check_page_of_four_vendors(tmp_path)


def check_page_of_four_vendors(folder: Path) -> None:
    """The page of a saved folder links the lines of every stage that records origins."""
    page = folder / "page.html"
    written = CliRunner().invoke(make_app(), ["explain", str(folder), "--html", str(page)])
    assert written.exit_code == 0, written.output
    kernels = [block for block in data_blocks(page.read_text()) if "panes" in block]
    by_vendor: dict[str, dict[str, bool]] = {}
    for kernel in kernels:
        linked = linked_stages(kernel)
        by_vendor.setdefault(next(v for v, b in BINARIES.items() if b in linked), linked)
    assert list(by_vendor) == list(BINARIES)
    gpu = ("aten", "prims", "loops", "triton", "ttir", "ttgir", "llir")
    assert by_vendor["cuda"] == {**dict.fromkeys((*gpu, "ptx"), True), "cubin": False}
    assert by_vendor["rocm"] == {**dict.fromkeys((*gpu, "amdgcn"), True), "hsaco": False}
    assert by_vendor["ascend"] == {
        **dict.fromkeys(("aten", "prims", "loops", "triton", "ttir"), True),
        **dict.fromkeys(("linalg", "kernel.o"), False),
    }


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_missing_farm_is_one_line_with_a_hint(model_file: Path, tmp_path: Path) -> None:
    done = run_compile(model_file, "--out", tmp_path, "--endpoint", NOBODY)
    assert done.returncode == 1
    error, hint = done.stderr.strip().splitlines()
    assert NOBODY in error and "kernelfarm up" in hint
