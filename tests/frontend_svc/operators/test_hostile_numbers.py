"""For any numbers that a client sends with an operator, the result is Prims or a clear refusal."""

from __future__ import annotations

import inspect
import itertools
import math
import random
from typing import Any

import pytest

from frontend_svc.decompose.pipeline import decompose_to_prims
from frontend_svc.operators import DECOMPOSED, Tensor
from frontend_svc.operators.core.arguments import READERS
from frontend_svc.operators.core.registry import Operator
from frontend_svc.operators.core.values import Number, Operand
from kernelfarm.dtypes import DType
from kernelfarm.errors import CallerError, InvalidGraphError
from kernelfarm.ir.algebra.expr import Expr, as_expr, symbol
from kernelfarm.ir.check_graph import check_client_graph
from kernelfarm.ir.graph_ir import Arg, Graph, Node, Ref, SizeSymbol, TensorType
from kernelfarm.ir.work_budget import work_budget
from tests.support.captured_graphs import one_node_graph
from tests.support.small_graphs import tensor

F32, I64 = DType.F32, DType.I64
INTEGERS = (0, 1, -1, 2, 3, 63, 64, 100, 10**6, 2**31, 2**62, 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, 0.5, -2.0, 1e19, 1e308, -1e308, 5e-324, math.inf, -math.inf, math.nan)
SIZES = (SizeSymbol("s0", 2, None), SizeSymbol("s1", 0, 2**63 - 1))
SHAPES = ((4,), (2, 4), (2, 3, 4), (1, 2, 4, 4), (1, 2, 4, 4, 4), (), (0,), (4, 4), (2**40, 2**40))
MAX_STEPS = 300_000
"""An operator on small tensors takes thousands of steps; costly cases end at this limit."""

KINDS = {reader: kind for kind, reader in READERS.items()}


class _Case:
    """One node with arguments of the right kinds, some of them hostile."""

    def __init__(self, operator: Operator, random: random.Random) -> None:
        self._random = random
        self._inputs: list[TensorType] = []
        self._shape = random.choice(SHAPES)
        self._dtype = random.choice((F32, F32, F32, I64, DType.BOOL, DType.F16))
        args: list[Arg] = []
        attrs: dict[str, Arg] = {}
        for parameter in operator.signature.parameters:
            is_required = parameter.default is inspect.Parameter.empty
            if not is_required and random.random() < 0.4:
                if parameter.is_positional:
                    break
                continue
            value = self._value(KINDS[parameter.reader])
            if parameter.is_positional:
                args.append(value)
            else:
                attrs[parameter.name] = value
        stated = tensor(*self._shape, dtype=self._dtype)
        self.graph = one_node_graph(operator.name, self._inputs, args, stated, SIZES, **attrs)

    def _value(self, kind: Any) -> Arg:
        one = self._random
        options = {
            Tensor: self._tensor,
            Number: self._number,
            Operand: one.choice((self._tensor, self._number)),
            int: lambda: one.choice(INTEGERS),
            bool: lambda: one.random() < 0.5,
            float: lambda: one.choice((*FLOATS, *INTEGERS)),
            Expr: self._extent,
            DType: lambda: one.choice((F32, I64, DType.BOOL, DType.F64, DType.U8)),
            str: lambda: one.choice(("none", "mean", "tanh", "ij", "floor", "trunc", "linear")),
            int | Expr: self._extent,
            type(None): lambda: None,
            tuple[Tensor, ...]: lambda: tuple(self._tensor() for _ in range(one.randint(0, 3))),
            tuple[Tensor | None, ...]: lambda: tuple(
                one.choice((self._tensor, lambda: None))() for _ in range(one.randint(0, 3))
            ),
            tuple[float, ...]: lambda: self._list(FLOATS),
            tuple[bool, ...]: lambda: self._list((True, False)),
            tuple[int, ...]: lambda: self._list(INTEGERS),
            tuple[Expr, ...]: lambda: tuple(self._extent() for _ in range(one.randint(0, 5))),
        }
        if kind in options:
            return options[kind]()
        (inner,) = (k for k in options if k is not type(None) and k | None == kind)
        return None if one.random() < 0.3 else options[inner]()

    def _tensor(self) -> Arg:
        shape = self._shape if self._random.random() < 0.7 else self._random.choice(SHAPES)
        dtype = self._dtype if self._random.random() < 0.8 else I64
        if shape and self._random.random() < 0.1:
            self._inputs.append(tensor(symbol("s0"), *shape[1:], dtype=dtype))
        else:
            self._inputs.append(tensor(*shape, dtype=dtype))
        return Ref(len(self._inputs) - 1)

    def _number(self) -> Arg:
        return self._random.choice((*FLOATS, *INTEGERS, True, symbol("s1")))

    def _extent(self) -> Arg:
        return self._random.choice((*INTEGERS, symbol("s0"), symbol("s1") * 2 - 1, as_expr(4)))

    def _list(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(self._random.choice(values) for _ in range(self._random.randint(0, 5)))


def _check(operator: Operator, seed: int) -> None:
    graph = _Case(operator, random.Random(f"{operator.name} {seed}")).graph
    try:
        with work_budget(MAX_STEPS):
            check_client_graph(graph)
            decompose_to_prims(graph)
    except CallerError:
        return
    except Exception as error:
        raise AssertionError(f"{graph.nodes[0]} of {graph.inputs}: {error!r}") from error


def test_hostile_numbers_never_are_an_internal_error() -> None:
    for operator in DECOMPOSED.values():
        for seed in range(8):
            _check(operator, seed)


@pytest.mark.slow
def test_many_hostile_numbers_never_are_an_internal_error() -> None:
    for operator in DECOMPOSED.values():
        for seed in range(8, 400):
            _check(operator, seed)


RANGES = tuple(itertools.product((0, 0.5, 1e308, math.inf, 2**63 - 1), repeat=2))
STEPS = (1e308, -1e308, math.inf, math.nan, 5e-324, 0, 0.0, 2**63 - 1, -(2**63))


@pytest.mark.parametrize("dtype", [F32, I64])
@pytest.mark.parametrize("operator", ["aten.range.step", "aten.arange.start_step"])
def test_ranges_of_hostile_numbers_are_refused_clearly(operator: str, dtype: DType) -> None:
    refused = 0
    for (start, end), step in itertools.product(RANGES, STEPS):
        node = Node(operator, (start, end, step), (("dtype", dtype),), (0,), (tensor(7),))
        graph = Graph("aten", (), (), (node,), (Ref(0),), (tensor(7),))
        with pytest.raises(InvalidGraphError, match=rf"^node 0 \({operator}\): ") as error:
            decompose_to_prims(graph)
        assert len(str(error.value)) < 400
        refused += 1
    assert refused == len(RANGES) * len(STEPS)
