"""Operators of PyTorch's own database with their seeded sample inputs."""

from __future__ import annotations

import itertools
import random
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from kernelfarm.client.pytorch.dtypes import dtype_to_torch
from kernelfarm.dtypes import DType

if TYPE_CHECKING:
    from torch.testing._internal.opinfo.core import OpInfo

LOOKED_AT = 64
"""Samples of an operator from which a few are drawn; some operators offer thousands."""

DTYPES: tuple[DType, ...] = (
    DType.F32,
    DType.F64,
    DType.BF16,
    DType.F16,
    DType.I64,
    DType.I32,
    DType.I16,
    DType.I8,
    DType.U8,
    DType.BOOL,
)
"""The types of the sweep, in its order; the database has no float8."""


@dataclass(frozen=True, slots=True)
class Task:
    """One operator in one element type, forward or with its gradients."""

    op: str
    dtype: str
    mode: str


@dataclass(frozen=True, slots=True)
class Sample:
    """A function of its tensors: `function(*tensors)` calls the operator."""

    function: Callable[..., Any]
    tensors: tuple[torch.Tensor, ...]


def operators() -> dict[str, OpInfo]:
    """Every entry of the database by name, with its variant where it has one."""
    from torch.testing._internal.common_methods_invocations import op_db  # noqa: PLC0415 # seconds

    return {_name(info): info for info in op_db}


def tasks(mode: str, dtypes: Sequence[DType] = DTYPES, pattern: str = "") -> Iterator[Task]:
    """All tasks of a mode, one element type after the other."""
    reference = re.compile(pattern)
    for dtype in dtypes:
        for name, info in operators().items():
            if reference.search(name) and _supports(info, dtype, mode):
                yield Task(name, dtype.value, mode)


def samples(info: OpInfo, task: Task, seed: int, count: int) -> list[Sample]:
    """At most `count` samples, the first always among them, drawn and filled by the seed."""
    own_seed = zlib.crc32(f"{seed}/{task.op}/{task.dtype}".encode())
    seed_all(own_seed)
    made = info.sample_inputs(
        "cpu", dtype_to_torch(DType(task.dtype)), requires_grad=task.mode == "backward"
    )
    found = list(itertools.islice(made, LOOKED_AT))
    rest = range(1, len(found))
    chosen = sorted(random.Random(own_seed).sample(rest, min(count - 1, len(rest))))
    return [_sample(info, found[n]) for n in ([0] if found else []) + chosen]


def seed_all(seed: int) -> None:
    """Sets every generator that operators and the database use."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def _sample(info: OpInfo, sample: Any) -> Sample:
    leaves, spec = pytree.tree_flatten((sample.input, tuple(sample.args), dict(sample.kwargs)))
    positions = [n for n, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def function(*tensors: torch.Tensor) -> Any:
        filled = list(leaves)
        for position, tensor in zip(positions, tensors, strict=True):
            filled[position] = tensor
        first, args, kwargs = pytree.tree_unflatten(filled, spec)
        return info.op(first, *args, **kwargs)

    return Sample(function, tuple(leaves[n] for n in positions))


def _name(info: OpInfo) -> str:
    return f"{info.name}.{info.variant_test_name}" if info.variant_test_name else str(info.name)


def _supports(info: OpInfo, dtype: DType, mode: str) -> bool:
    reference = dtype_to_torch(dtype)
    if mode == "backward":
        return bool(info.supports_autograd) and reference in info.supported_backward_dtypes("cpu")
    return reference in info.supported_dtypes("cpu")
