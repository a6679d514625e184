"""kernelfarm's operator for a tile program on a processor, which captured graphs contain.

PyTorch captures calls of Triton kernels only where Triton has a device. This operator carries the
kernel's source instead. It is functional: the tensors that the kernel writes are its results. Only
a farm compiles it, so it does not run by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernelfarm.client.pytorch.fake_kernels import register_fake
from kernelfarm.errors import TileProgramError

_SCHEMA = "(Tensor[] tensors, SymInt[] sizes, SymInt[] grid, str source, int[] written) -> Tensor[]"


def _refuse(
    tensors: Sequence[Tensor],
    sizes: Sequence[int],
    grid: Sequence[int],
    source: str,
    written: Sequence[int],
) -> list[Tensor]:
    raise TileProgramError(
        "a tile program runs on a processor only within a model that is compiled with the backend"
        " kernelfarm, and whose farm answers"
    )


def _empty(
    tensors: Sequence[Tensor], sizes: object, grid: object, source: str, written: Sequence[int]
) -> list[Tensor]:
    return [
        tensors[position].new_empty_strided(tensors[position].shape, tensors[position].stride())
        for position in written
    ]


torch.library.define("kernelfarm::tile_program", _SCHEMA)
torch.library.impl("kernelfarm::tile_program", "CompositeExplicitAutograd", _refuse)
register_fake("tile_program", _empty)

TILE_PROGRAM = torch.ops.kernelfarm.tile_program.default
"""The kernel of `source` on tensors and sizes; the tensors at the positions `written`, anew."""
