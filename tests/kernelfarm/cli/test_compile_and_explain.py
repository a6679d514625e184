"""`compile`, `explain` and `doctor` in this process."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

import pytest
import torch

from examples.real_inputs import ReferenceModel
from kernelfarm.cli import main
from kernelfarm.client.loaders.host_target import host_cpu_target
from tests.support.page_data import data_blocks, linked_stages


def saved_pt2(folder):
    program = torch.export.export(ReferenceModel().eval(), (torch.randn(32, 128),))
    path = folder / "model.pt2"
    torch.export.save(program, path)
    return path


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


@pytest.fixture
def command(monkeypatch, capsys):
    """Runs the command line in this process: a process of its own would load torch each time."""

    def run(*arguments) -> Done:
        monkeypatch.setattr(sys, "argv", ["kernelfarm", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        return Done(code, *capsys.readouterr())

    return run


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_command_line_compiles_and_explains_a_file(endpoint, tmp_path, command):
    path = saved_pt2(tmp_path)
    out = tmp_path / "out"
    done = command("compile", path, "--out", out)
    assert done.code == 0, done.err
    (program,) = json.loads((out / "manifest.json").read_text())["programs"]
    (kernel,) = program["kernels"]
    assert kernel["name"][:20] in done.out
    binary = out / kernel["variants"][-1]["stages"]["so"]
    assert binary.read_bytes().startswith(b"\x7fELF")
    by_folder = command("explain", out, "--stage", "loops").out
    by_key = command("explain", program["key"], "--stage", "loops").out
    by_file = command("explain", path, "--stage", "loops").out
    assert kernel["name"] in by_folder
    assert by_folder == by_key == by_file
    assembly = command("explain", out, "--kernel", kernel["name"], "--stage", "asm").out
    assert any(register in assembly for register in ("zmm", "ymm", "v0"))
    page = tmp_path / "page.html"
    for source, where in ((out, "saved directory"), (program["key"], "hit in the"), (path, "hit")):
        written = command("explain", source, "--html", page)
        assert written.code == 0 and "written" in written.out, written.err
        assert where in page.read_text()
        (_, stages) = data_blocks(page.read_text())
        assert linked_stages(stages) | {"asm": False} == {
            **dict.fromkeys(("aten", "prims", "loops", "llir", "llir_opt"), True),
            **dict.fromkeys(("asm", "object", "so"), False),
        }
    both = command("explain", out, "--html", page, "--stage", "loops")
    assert both.code == 1 and "--html writes every kernel" in both.err
    unwritable = command("explain", out, "--html", tmp_path / "nowhere" / "page.html")
    assert unwritable.code == 1 and "cannot write" in unwritable.err
    (out / program["content"]).write_bytes(b"changed")
    changed = command("explain", out, "--html", page)
    assert changed.code == 1 and "digest" in changed.err
    missing = command("explain", out, "--stage", "nonsense")
    assert missing.code == 1 and "loops" in missing.err


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_an_unknown_target_is_answered_with_the_known_ones(endpoint, tmp_path, command):
    done = command("compile", saved_pt2(tmp_path), "--target", "cuda:sm_1", "--out", tmp_path)
    assert done.code == 1
    assert "cuda:sm_1" in done.err and "cuda:sm_90a" in done.err
    assert "Traceback" not in done.err


def test_what_is_no_file_and_no_key_is_refused(command):
    done = command("explain", "nowhere")
    assert done.code == 1
    assert done.err.startswith("kernelfarm: error: 'nowhere' is not a file")


def test_the_doctor_finds_the_farm_and_the_toolchains(endpoint, command):
    done = command("doctor")
    assert done.code == 0, done.out + done.err
    for word in (endpoint, "llvmlite", "triton", host_cpu_target()):
        assert word in done.out
