"""`kernelfarm.compile` and exported programs."""

from __future__ import annotations

import pytest
import torch

import kernelfarm
from examples.real_inputs import ReferenceModel, h, llama
from kernelfarm.client.capture.captured import UnsupportedGraphError
from kernelfarm.client.capture.exported import export_model, read_pt2
from kernelfarm.client.loaders.host_target import host_cpu_target
from kernelfarm.errors import CallerError
from tests.support.accuracy import assert_as_good_as_eager


class Cell(torch.nn.Module):
    """Keeps state, writes its input, returns a structure."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 4)
        self.register_buffer("count", torch.zeros(4))
        self.table = torch.arange(4.0)

    def forward(self, x, *, scale):
        self.count.add_(1)
        x.mul_(2)
        y = self.linear(x) + self.count + self.table * scale
        return {"sum": y.sum(1), "both": (y, x.shape[0], None)}


def test_a_model_runs_on_the_host_through_its_compiled_form(endpoint):
    model = ReferenceModel().eval()
    x = torch.randn(32, 128)
    compiled = kernelfarm.compile(model, (x,))
    assert_as_good_as_eager(compiled(x), model, x)
    assert list(compiled.programs) == [host_cpu_target()]


def test_functions_compile_as_models_do(endpoint):
    a, b = torch.randn(4, 6), torch.randn(4, 6)
    assert_as_good_as_eager(kernelfarm.compile(h, (a, b))(a, b), h, a, b)


def test_attention_of_an_exported_llama_stays_one_operator(endpoint):
    source = llama()
    exported = export_model(source.model, source.args)
    ops = [node.op for node in exported.captured.graph.nodes]
    assert ops.count("aten.scaled_dot_product_attention.default") == 2
    compiled = kernelfarm.compile(source.model, source.args)
    assert_as_good_as_eager(compiled(*source.args), source.model, *source.args)


def test_state_structures_and_written_inputs_come_out_as_eager_leaves_them(endpoint):
    torch.manual_seed(0)
    eager, ours = Cell(), Cell()
    ours.load_state_dict(eager.state_dict())
    scale = torch.tensor(0.5)
    rows = torch.export.Dim("rows", min=2, max=64)
    shapes = {"x": {0: rows}, "scale": None}
    compiled = kernelfarm.compile(
        ours, (torch.randn(8, 3),), {"scale": scale}, dynamic_shapes=shapes
    )
    for size in (8, 5, 64):
        x, y = (torch.full((size, 3), 0.25) for _ in range(2))
        with torch.no_grad():
            expected = eager(x, scale=scale)
        result = compiled(y, scale=scale)
        torch.testing.assert_close(result["sum"], expected["sum"])
        torch.testing.assert_close(result["both"][0], expected["both"][0])
        assert result["both"][1:] == (size, None)
        torch.testing.assert_close(y, x)
    torch.testing.assert_close(ours.count, eager.count)
    with pytest.raises(CallerError, match="compiled for 2 to 64"):
        compiled(torch.randn(65, 3), scale=scale)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((torch.randn(4, 7), torch.randn(4, 6)), r"\(4, 7\)"),
        ((torch.randn(4, 6).double(), torch.randn(4, 6)), "float64"),
        ((torch.randn(4, 6),), "structure"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(args, message, endpoint):
    compiled = kernelfarm.compile(h, (torch.randn(4, 6), torch.randn(4, 6)))
    with pytest.raises(CallerError, match=message):
        compiled(*args)


def test_a_model_that_is_not_one_graph_is_refused():
    with pytest.raises(UnsupportedGraphError, match=r"torch.export"):
        export_model(lambda x: x * 2 if x.sum() > 0 else x, (torch.randn(3),))


def test_a_file_that_is_no_exported_program_is_refused(tmp_path):
    path = tmp_path / "model.pt2"
    path.write_bytes(b"nothing")
    for wrong in (path, tmp_path / "absent.pt2"):
        with pytest.raises(CallerError, match=r"model.pt2|absent.pt2"):
            read_pt2(wrong)
