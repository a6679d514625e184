"""Values of size symbols, read from the inputs of a call."""

from __future__ import annotations

from collections.abc import Sequence

from kernelfarm.errors import VerificationError
from kernelfarm.ir.algebra.atoms import lone_symbol
from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.graph_ir import Constant, Graph, TensorType
from kernelfarm.ir.interpret.arrays import Array

Value = Array | int


def sizes_of_inputs(graph: Graph, inputs: Sequence[Value]) -> dict[str, int]:
    """The values of the symbols; `inputs` has one entry for each input other than constants.

    Raises:
        VerificationError: the number of inputs or an extent contradicts the graph.
    """
    sources = [source for source in graph.inputs if not isinstance(source.kind, Constant)]
    if len(sources) != len(inputs):
        raise VerificationError(f"{len(inputs)} inputs; expected {len(sources)}")
    sizes: dict[str, int] = {}
    extents: list[tuple[Expr, int]] = []
    for source, value in zip(sources, inputs, strict=True):
        if isinstance(source.kind, str):
            sizes[source.kind] = int(value)
        elif isinstance(source.kind, TensorType) and not isinstance(value, int):
            if len(source.kind.shape) != value.ndim:
                raise VerificationError(
                    f"input {source.value} of rank {value.ndim}; expected {source.kind.rank}"
                )
            extents.extend(zip(source.kind.shape, value.shape, strict=True))
    for expr, extent in extents:
        name = lone_symbol(expr)
        if name is not None:
            sizes.setdefault(name, extent)
    for expr, extent in extents:
        if expr.evaluate(sizes) != extent:
            raise VerificationError(f"an input of extent {extent}; expected {expr} with {sizes}")
    return sizes
