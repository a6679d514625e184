"""Nodes that nobody reads go; steps of the framework stay."""

from __future__ import annotations

from kernelfarm.dtypes import DType
from tests.optimizer_svc.passes.optimized_ops import _ops
from tests.support.prims_graphs import Maker, tensor, tensor_with_strides


def test_a_step_of_the_framework_that_nobody_reads_stays() -> None:
    make = Maker()
    x = make.add_input(tensor(3))
    kind = tensor_with_strides(2, dtype=DType.I64)
    make.add_extern("aten.multinomial.default", 0, [x], [kind], is_contraction=False)
    make.add("exp", x)
    assert _ops(make.returning(make.add("sin", x))) == ["extern", "sin"]
