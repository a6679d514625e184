"""Models whose products cube cores compute, through a farm; their Linalg runs on this CPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from examples.real_inputs import WHOLE_GRAPHS
from kernelfarm.client.capture.exported import export_model
from kernelfarm.client.compile_model import connect
from kernelfarm.client.farm.compile_options import CompileOptions
from kernelfarm.client.farm.compiled_program import CompiledProgram
from kernelfarm.client.loaders.variants import LoadedVariant
from kernelfarm.client.runtime.program import BoundProgram
from kernelfarm.client.runtime.runner import PlanRunner
from kernelfarm.ir.graph_ir import Graph
from kernelfarm.ir.product_choice import ProductChoice
from kernelfarm.ir.program_ir import ExternCall
from kernelfarm.ir.text import parse_kernel
from tests.e2e.linalg_loader import LinalgLoader
from tests.support.accuracy import assert_as_good_as_eager
from tests.support.command_line import run_command
from tests.support.farm import TIMEOUT_S
from tests.support.linalg_cpu import TOOLS
from tests.support.third_party import need

TARGET = "ascend:910b"
ATTENTION = "aten.scaled_dot_product_attention.default"


class GeluLayer(nn.Module):
    """The feed-forward layer of BERT: bias and GELU, then bias and residual, LayerNorm before."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: x: (..., width) -> (..., width)."""
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class GatedLayer(nn.Module):
    """The feed-forward layer of Llama."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: x: (..., width) -> (..., width)."""
        return x + self.down(nn.functional.silu(self.gate(x)) * self.up(x))


def layer(
    model: nn.Module, *shape: int, dtype: torch.dtype = torch.float16
) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """A layer and its argument."""
    torch.manual_seed(3)
    return model.to(dtype), (torch.randn(shape).to(dtype),)


def whole(name: str) -> tuple[Any, tuple[torch.Tensor, ...]]:
    """A whole model and its arguments, in f16."""
    made = WHOLE_GRAPHS[name]().half()
    return made.model, made.args


LAYERS: dict[str, Callable[[], tuple[Any, tuple[torch.Tensor, ...]]]] = {
    "gelu": lambda: layer(GeluLayer(70, 130), 3, 33, 70),
    "gelu-f32": lambda: layer(GeluLayer(70, 130), 50, 70, dtype=torch.float32),
    "gelu-one-row": lambda: layer(GeluLayer(70, 130), 1, 70),
    "gated": lambda: layer(GatedLayer(96, 130), 100, 96),
    "reference": lambda: whole("reference"),
}
MODELS: dict[str, Callable[[], tuple[Any, tuple[torch.Tensor, ...]]]] = {
    **LAYERS,
    "llama": lambda: whole("llama"),
    "bert": lambda: whole("bert"),
}
# slow: to translate and run the Linalg of a whole model takes seconds.
CASES = [pytest.param(name, marks=[] if name in LAYERS else [pytest.mark.slow]) for name in MODELS]


def compiled(graph: Graph, endpoint: str, choice: ProductChoice) -> CompiledProgram:
    with connect(endpoint, TIMEOUT_S) as client:
        (program,) = client.compile(graph, [TARGET], options=CompileOptions(products=choice))
    return program


@pytest.mark.third_party
@pytest.mark.parametrize("name", CASES)
def test_linalg_of_products_computes_what_eager_does(
    name: str, vendor_endpoint: str, tmp_path: Path
) -> None:
    need(*TOOLS)
    model, args = MODELS[name]()
    exported = export_model(model, args)
    program = compiled(exported.captured.graph, vendor_endpoint, ProductChoice.OWN)
    if not all(variant.is_stub for variants in program.kernels for variant in variants):
        pytest.skip("this farm makes real objects: bishengir-compile is installed")
    externs = {step.op for step in program.plan.steps if isinstance(step, ExternCall)}
    assert externs <= ({ATTENTION} if name not in LAYERS else set())
    with connect(vendor_endpoint) as client:
        stages = [s.sha256 for vs in program.kernels for s in vs[-1].stages]
        blobs = client.read_blobs(sorted(set(stages)))
    texts = [{s.name: blobs[s.sha256] for s in variants[-1].stages} for variants in program.kernels]
    kernels = {
        name: parse_kernel(stages["kernel"].decode())
        for name, stages in zip(program.plan.kernel_names, texts, strict=True)
    }
    loader = LinalgLoader(kernels, tmp_path)
    loaded = tuple(
        (LoadedVariant((), loader.load(blobs[v[-1].binary.sha256], v[-1].launch)),)
        for v in program.kernels
    )
    runner = PlanRunner(BoundProgram(program.plan, loaded, exported.captured, loader))
    with torch.no_grad():
        flat = exported.flat_args(args, {})
        result = exported.results(runner(flat), flat)
    assert_as_good_as_eager(result, model, *args)
    needs_cubes = [b"linalg.matmul" in stages["linalg"] for stages in texts]
    assert any(needs_cubes) is (name != "gelu-one-row")


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_command_line_compiles_products_and_explains_them(
    vendor_endpoint: str, tmp_path: Path
) -> None:
    path, out = tmp_path / "model.pt2", tmp_path / "out"
    model = GatedLayer(64, 128).half()
    torch.export.save(torch.export.export(model, (torch.randn(40, 64).half(),)), path)
    run_command("compile", path, "--products", "own", "--target", TARGET, "--out", out)
    (program,) = json.loads((out / "manifest.json").read_text())["programs"]
    assert len(program["kernels"]) == 2
    report = run_command("explain", out, "--stage", "report")
    assert report.count("by a kernel: the request asks for kernels") == 3
    notes = run_command("explain", out, "--stage", "notes")
    assert notes.count("cube cores and") == 2
    assert "L0A" in notes and "unified buffer" in notes
    assert run_command("explain", out, "--stage", "linalg").count("linalg.matmul") == 3
