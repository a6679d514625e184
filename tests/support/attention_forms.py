"""Attention of several queries in several forms, and its graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.targets import target_facts
from tests.support.traced_graphs import recording

TARGET = target_facts("cuda:sm_90a")


@dataclass(frozen=True)
class Form:
    """Queries (batch, heads, queries, width), keys and values (batch, groups, keys, width)."""

    batch: int = 1
    heads: int = 2
    groups: int = 2
    queries: int = 70
    keys: int = 70
    width: int = 64
    mask: tuple[int, ...] | None = None
    is_causal: bool = False
    is_packed: bool = False
    dtype: torch.dtype = torch.bfloat16

    def operands(self) -> list[Tensor]:
        """Query, key, value, and a mask of booleans; packed ones lie beside each other in memory.

        A mask hides all keys from one query.
        """
        torch.manual_seed(0)
        shapes = [(self.heads, self.queries), (self.groups, self.keys), (self.groups, self.keys)]
        if self.is_packed:
            packed = torch.randn(self.batch, self.keys, 3, self.heads, self.width)
            found = list(packed.to(self.dtype).permute(2, 0, 3, 1, 4))
        else:
            found = [
                torch.randn(self.batch, heads, length, self.width).to(self.dtype)
                for heads, length in shapes
            ]
        if self.mask is not None:
            mask = torch.rand(*self.mask, self.keys) < 0.7
            mask[0, 0, 0] = False
            found.append(mask)
        return found

    def attend(self, *operands: Tensor) -> Tensor:
        query, key, value, *masks = operands
        return functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=masks[0] if masks else None,
            is_causal=self.is_causal,
            enable_gqa=self.heads != self.groups,
        )


def traced_with_gradients(form: Form, operands: Sequence[Tensor]) -> list[CapturedGraph]:
    """The graphs of both passes."""
    for operand in operands[:3]:
        operand.requires_grad_()
    found: list[CapturedGraph] = []
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda *x: form.attend(*x).transpose(1, 2).flatten(2), backend=recording(found)
    )
    compiled(*operands).sum().backward()
    for operand in operands[:3]:
        operand.requires_grad_(False)
    return found
