"""Prims that are no scalar operations, in the interpreter, against PyTorch."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from kernelfarm.dtypes import DType
from kernelfarm.errors import VerificationError
from kernelfarm.ir.algebra.expr import as_expr, symbol
from kernelfarm.ir.builder import GraphBuilder
from kernelfarm.ir.graph_ir import Arg, Ref, SizeSymbol, TensorType
from kernelfarm.ir.interpret import ExternSite, run_graph
from kernelfarm.ir.text import parse_graph
from kernelfarm.ir.verify import verify_graph
from tests.kernelfarm.ir.single_prim import TIES, WITH_NAN, X, graph_of
from tests.support.ir_strategies import GOLDEN

INDEX = torch.tensor([[0, -1], [1, 1]])


Case = tuple[str, list[torch.Tensor], dict[str, Arg], Callable[..., torch.Tensor]]

CASES: list[Case] = [
    ("reshape", [X], {"shape": (4, 6)}, lambda x: x.reshape(4, 6)),
    ("reshape", [X], {"shape": (24,)}, lambda x: x.reshape(24)),
    ("permute", [X], {"dims": (2, 0, 1)}, lambda x: x.permute(2, 0, 1)),
    (
        "broadcast_in_dim",
        [X[:, :1]],
        {"dims": (0, 2, 3), "shape": (2, 5, 3, 4)},
        lambda x: x.unsqueeze(1).expand(2, 5, 3, 4),
    ),
    ("broadcast_in_dim", [X[0, 0, 0]], {"dims": (), "shape": (2,)}, lambda x: x.expand(2)),
    (
        "slice",
        [X],
        {"starts": (0, 1, 0), "limits": (2, 3, 4), "steps": (1, 1, 3)},
        lambda x: x[:, 1:, ::3],
    ),
    (
        "slice",
        [X],
        {"starts": (1, 2, 0), "limits": (1, 3, 4), "steps": (1, 1, 1)},
        lambda x: x[1:1, 2:],
    ),
    ("flip", [X], {"dims": (0, 2)}, lambda x: x.flip(0, 2)),
    (
        "window",
        [X],
        {"dims": (2,), "sizes": (2,), "strides": (1,), "dilations": (1,)},
        lambda x: x.unfold(2, 2, 1),
    ),
    (
        "window",
        [X],
        {"dims": (1, 2), "sizes": (2, 2), "strides": (1, 1), "dilations": (1, 3)},
        lambda x: x.unfold(1, 2, 1).unfold(2, 4, 1)[..., ::3],
    ),
    (
        "window",
        [X],
        {"dims": (0, 2), "sizes": (1, 2), "strides": (1, 2), "dilations": (1, 1)},
        lambda x: x.unfold(0, 1, 1).unfold(2, 2, 2),
    ),
    ("cat", [X, X[:, :1]], {"dim": 1}, lambda x, y: torch.cat([x, y], 1)),
    (
        "pad",
        [X],
        {"low": (0, 1, 0), "high": (0, 0, 2), "value": -1.5},
        lambda x: torch.nn.functional.pad(x, (0, 2, 1, 0), value=-1.5),
    ),
    ("sum", [X], {"dims": (0, 2)}, lambda x: x.sum((0, 2))),
    ("sum", [TIES], {"dims": (1,)}, lambda x: x.sum(1)),
    ("prod", [X], {"dims": (1,)}, lambda x: x.prod(1)),
    ("amax", [WITH_NAN], {"dims": (2,)}, lambda x: x.amax(2)),
    ("amin", [WITH_NAN], {"dims": (0, 1)}, lambda x: x.amin((0, 1))),
    ("amax", [TIES], {"dims": (0,)}, lambda x: x.amax(0)),
    ("argmax", [WITH_NAN], {"dims": (2,)}, lambda x: x.argmax(2)),
    ("argmin", [WITH_NAN], {"dims": (0, 1, 2)}, lambda x: x.argmin()),
    ("argmax", [X], {"dims": (1, 2)}, lambda x: x.flatten(1).argmax(1)),
    ("any", [X > 10], {"dims": (1, 2)}, lambda x: x.any(2).any(1)),
    ("all", [X > -11], {"dims": (0,)}, lambda x: x.all(0)),
    ("cumsum", [X], {"dim": 1}, lambda x: x.cumsum(1)),
    ("cumsum", [WITH_NAN], {"dim": 2}, lambda x: x.cumsum(2)),
    ("take", [X, INDEX], {"dim": 1}, lambda x, i: x[:, i]),
    ("take", [X, INDEX[0, 0]], {"dim": 2}, lambda x, i: x[:, :, i]),
    (
        "gather_nd",
        [X, INDEX, INDEX - 1],
        {"dims": (0, 2)},
        lambda x, i, j: x.permute(0, 2, 1)[i, j],
    ),
    ("gather_nd", [X, INDEX], {"dims": (1,)}, lambda x, i: x.permute(1, 0, 2)[i]),
    ("gather_along", [TIES, INDEX % 3], {"dim": 0}, lambda x, i: x.gather(0, i)),
    ("gather_along", [TIES, INDEX % 3], {"dim": 1}, lambda x, i: x.gather(1, i)),
    (
        "full",
        [],
        {"shape": (2, 3), "value": 7, "dtype": DType.F32},
        lambda: torch.full((2, 3), 7.0),
    ),
    ("iota", [], {"length": 5, "dtype": DType.I64}, lambda: torch.arange(5)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[2]}")
def test_a_prim_equals_pytorch(case: Case) -> None:
    op, inputs, attrs, reference = case
    graph = graph_of(op, [x.contiguous() for x in inputs], attrs)
    verify_graph(graph)
    (actual,) = run_graph(graph, [x.numpy() for x in inputs])
    expected = reference(*inputs).numpy()
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("op", "attrs", "source"),
    [("take", {"dim": 1}, X), ("gather_nd", {"dims": (1,)}, X), ("gather_along", {"dim": 1}, TIES)],
)
@pytest.mark.parametrize("bad", [-5, 4])
def test_an_index_outside_its_extent_is_an_error(
    op: str, attrs: dict[str, Arg], source: torch.Tensor, bad: int
) -> None:
    index = torch.full((2, 2), bad)
    with pytest.raises(IndexError, match=f"index {bad}; expected"):
        run_graph(graph_of(op, [source, index], attrs), [source.numpy(), index.numpy()])


@pytest.mark.parametrize(
    ("op", "expected"), [("sum", 0), ("prod", 1), ("amax", -np.inf), ("amin", np.inf)]
)
def test_a_reduction_of_no_elements_gives_its_neutral_element(op: str, expected: float) -> None:
    empty = torch.zeros(2, 0)
    (result,) = run_graph(graph_of(op, [empty], {"dims": (1,)}), [empty.numpy()])
    assert result.tolist() == [expected, expected]


def test_softmax_with_a_symbolic_batch_equals_pytorch() -> None:
    graph = parse_graph((GOLDEN / "softmax.graph").read_text())
    x = torch.randn(5, 8)
    x[2] = -torch.inf
    (result,) = run_graph(graph, [x.numpy()])
    np.testing.assert_allclose(result, x.softmax(1).numpy(), rtol=1e-5)


def test_extern_nodes_run_by_the_callback_and_sizes_are_outputs() -> None:
    graph = parse_graph((GOLDEN / "gathers.graph").read_text())
    sites: list[ExternSite] = []

    def run_extern(site: ExternSite, arrays: list[np.ndarray]) -> list[np.ndarray]:
        sites.append(site)
        a, b = arrays
        return [a @ b, a.sum(1)]

    x, i, w = torch.randn(3, 4, 6), torch.tensor([0, 2, 1]), torch.randn(6, 5)
    line, sums, size = run_graph(graph, [x.numpy(), i.numpy(), w.numpy()], run_extern)
    assert sites == [ExternSite(3, "aten.mm.default")]
    assert size == 3
    y = x @ w
    picked = y.permute(0, 2, 1)[i, i]
    chosen = torch.where(picked.argmax(1) == i, picked.argmax(1), torch.tensor(4))
    padded = torch.nn.functional.pad(torch.cat([chosen, torch.arange(3)]), (1, 2), value=-1)
    assert line.tolist() == padded[::2].flip(0).tolist()
    expected = y[:, i].permute(2, 0, 1).cumsum(2).numpy()
    np.testing.assert_allclose(sums, expected, rtol=1e-5, atol=1e-5)


def test_an_extern_node_without_a_callback_is_refused() -> None:
    graph = parse_graph((GOLDEN / "gathers.graph").read_text())
    inputs = [torch.randn(3, 4, 6), torch.tensor([0, 2, 1]), torch.randn(6, 5)]
    with pytest.raises(VerificationError, match=r"aten\.mm\.default"):
        run_graph(graph, [x.numpy() for x in inputs])


def test_an_input_that_contradicts_the_symbols_is_refused() -> None:
    s0 = symbol("s0")
    builder = GraphBuilder([SizeSymbol("s0", 1, None)])
    x = builder.add_input(TensorType(DType.F32, (s0, s0), (s0, as_expr(1))))
    graph = builder.build([Ref(x)], [builder.type_of(x)])
    with pytest.raises(VerificationError, match="extent 4; expected s0"):
        run_graph(graph, [np.zeros((3, 4), np.float32)])
