"""The tuning subject of a user's kernel: its compiled configurations, and the values of its key.

Launches use it, and warming jobs, which know the same subject without a launch.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from kernelfarm.digest import kernel_digest
from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import as_expr
from kernelfarm.ir.graph_ir import Arg, Node
from kernelfarm.ir.triton.node import check_node, key_arguments

_FLOAT_BITS: Mapping[DType, tuple[str, str]] = {DType.F32: ("<f", "<I"), DType.F64: ("<d", "<q")}

ConfigurationKey = tuple[tuple[bytes, ...], tuple[int, ...]]
"""The digests of a node's compiled configurations, and the values of its key."""


def configuration_key(
    node: Node, numbers: Sequence[int], sizes: Mapping[str, int]
) -> ConfigurationKey:
    """The key of a node whose configurations of these numbers were compiled.

    Raises:
        UserKernelError: the node is malformed.
    """
    kernels = check_node(node)
    launched = kernels[0].launched
    values = tuple(
        launched_number(node.args[position], launched[position].dtype, sizes)
        for position in key_arguments(node)
    )
    return tuple(kernel_digest(kernels[number]) for number in numbers), values


def is_key_constant(node: Node) -> bool:
    """True if no value of the node's key varies between calls."""
    args = (node.args[position] for position in key_arguments(node))
    return all(isinstance(arg, int | float) or as_expr(arg).is_constant for arg in args)  # type: ignore[arg-type] # sizes


def launched_number(arg: Arg, dtype: DType, sizes: Mapping[str, int]) -> int:
    """A number as the launch passes it: floats by their bits, in the low bytes."""
    if dtype in _FLOAT_BITS:
        of_float, of_bits = _FLOAT_BITS[dtype]
        assert isinstance(arg, float)  # checked with the node
        return int(struct.unpack(of_bits, struct.pack(of_float, arg))[0])
    return evaluated_size(arg, sizes)


def evaluated_size(arg: Any, sizes: Mapping[str, int]) -> int:
    """A size for these values of its symbols."""
    return int(as_expr(arg).evaluate(sizes)) if isinstance(arg, int) else int(arg.evaluate(sizes))
