"""Attention that `benchmarks.attention` measures: of one query for each head, and of several."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Case:
    """Queries (batch, heads, queries, width), keys and values (batch, groups, keys, width).

    One query has a mask, several queries have none or are causal, or `has_mask`. A mask shows the
    first `seen` keys, or three quarters of them if that is 0. With `has_bias` it has a number for
    each head, query and key instead, for all sequences, with a gradient.
    """

    batch: int
    heads: int
    groups: int
    keys: int
    width: int
    queries: int = 1
    is_causal: bool = False
    has_mask: bool = False
    seen: int = 0
    has_bias: bool = False

    def __str__(self) -> str:
        heads = f"{self.heads} heads of {self.width}, {self.groups} of keys"
        queries = "" if self.queries == 1 else f", {self.queries} queries"
        kind = " causal" * self.is_causal + " masked" * self.has_mask
        kind += " biased" * self.has_bias
        kind += f", {self.seen} seen" * bool(self.seen)
        return f"batch {self.batch}, {heads}, {self.keys} keys{queries}{kind}"

    def attend(self, *operands: Tensor) -> Tensor:
        """What a layer does: its next product reads the heads beside each other."""
        query, key, value, *masks = operands
        found = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=masks[0] if masks else None,
            is_causal=self.is_causal,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        return found.transpose(1, 2).flatten(2) + 0

    @property
    def fixed_axes(self) -> list[int]:
        """The axes of queries, keys and values whose sizes do not vary."""
        return [1, 3]

    def of_first(self, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The operands of the first sequence alone."""
        return tuple(operand[:1] for operand in operands)

    def flops(self) -> float:
        """Multiplications and additions of both products, without those of hidden keys."""
        seen = self.queries * self.keys / (2 if self.is_causal else 1)
        return 4 * self.batch * self.heads * seen * self.width

    def operands(self, dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
        """Queries, keys, values; for one query a mask that hides the last keys."""
        query = torch.randn(self.batch, self.heads, self.queries, self.width, device=device)
        shape = (self.batch, self.groups, self.keys, self.width)
        key, value = torch.randn(shape, device=device), torch.randn(shape, device=device)
        mask = torch.zeros(self.batch, 1, 1, self.keys, device=device)
        mask[..., self.seen or 3 * self.keys // 4 :] = -torch.inf
        if self.has_bias:
            mask = torch.randn(1, self.heads, self.queries, self.keys, device=device)
        has_mask = self.queries == 1 or self.has_mask or self.has_bias
        found = (query, key, value, mask) if has_mask else (query, key, value)
        return tuple(tensor.to(dtype) for tensor in found)


@dataclass(frozen=True)
class PagedCase(Case):
    """Attention whose keys and values are in pages of `size` rows of a cache.

    Pages are in no order, and each one is of one sequence. The last query sees `seen` keys, or all,
    and each query before it one less, as in a chunk of a prompt.
    """

    size: int = 16

    def __str__(self) -> str:
        return f"{super().__str__()}, pages of {self.size}"

    @property
    def fixed_axes(self) -> list[int]:
        """The axes of queries and caches whose sizes do not vary."""
        return [1, 2, 3]

    def attend(self, *operands: Tensor) -> Tensor:
        """What a layer of a server does: it gathers pages, and hides what is behind the keys."""
        query, *caches, table, lengths = operands
        key, value = (cache[table].flatten(1, 2).transpose(1, 2) for cache in caches)
        numbers = torch.arange(key.shape[2], device=query.device)
        last = lengths[:, None] + torch.arange(1 - self.queries, 1, device=query.device)
        mask = (numbers < last[:, :, None])[:, None]
        return super().attend(query, key, value, mask)

    def flops(self) -> float:
        """Multiplications and additions of both products, without those of hidden keys."""
        seen = self.queries * (self.seen or self.keys) - self.queries * (self.queries - 1) / 2
        return 4 * self.batch * self.heads * seen * self.width

    def operands(self, dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
        """Queries, caches of keys and values, the table of pages, numbers of keys."""
        query = torch.randn(self.batch, self.heads, self.queries, self.width, device=device)
        pages = self.keys // self.size
        shape = (self.batch * pages, self.size, self.groups, self.width)
        caches = (torch.randn(shape, device=device).to(dtype) for _ in range(2))
        table = torch.randperm(self.batch * pages, device=device).to(torch.int32)
        lengths = torch.full((self.batch,), self.seen or self.keys, device=device)
        return (query.to(dtype), *caches, table.view(self.batch, pages), lengths)

    def of_first(self, operands: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The operands of the first sequence alone, with a cache of its pages."""
        query, *caches, table, lengths = operands
        own = (cache[table[0]] for cache in caches)
        numbers = torch.arange(table.shape[1], device=table.device)
        return (query[:1], *own, numbers[None], lengths[:1])


CPU_CASES = (
    Case(1, 12, 12, 64, 64),
    Case(1, 12, 12, 512, 64),
    Case(8, 12, 12, 512, 64),
    Case(1, 16, 4, 512, 64),
    Case(8, 16, 4, 512, 64),
    Case(1, 32, 8, 2048, 128),
    Case(4, 32, 8, 2048, 128),
    Case(1, 8, 1, 4096, 256),
    # A cache with room for more keys, and a full one.
    Case(1, 12, 12, 512, 64, seen=129),
    Case(8, 12, 12, 512, 64, seen=129),
    Case(8, 12, 12, 512, 64, seen=512),
    Case(8, 16, 4, 512, 64, seen=129),
    Case(8, 16, 4, 512, 64, seen=512),
    # Layers of Swin, ViT-small, BERT-base and Llama, and longer ones.
    Case(64, 3, 3, 49, 32, queries=49),
    Case(1, 24, 24, 49, 32, queries=49),
    Case(1, 6, 6, 197, 64, queries=197),
    Case(1, 12, 12, 128, 64, queries=128),
    Case(8, 12, 12, 128, 64, queries=128),
    Case(1, 12, 12, 128, 64, queries=128, is_causal=True),
    Case(1, 8, 8, 512, 64, queries=32),
    Case(1, 16, 4, 512, 64, queries=128),
    Case(8, 16, 4, 512, 64, queries=128),
    Case(1, 8, 8, 1024, 64, queries=1024),
    Case(1, 8, 8, 1024, 128, queries=1024, is_causal=True),
    Case(1, 12, 12, 512, 64, queries=512),
    Case(1, 16, 16, 512, 64, queries=512, is_causal=True),
    Case(1, 16, 16, 2048, 64, queries=2048, is_causal=True),
    Case(1, 16, 16, 4096, 64, queries=4096),
    Case(1, 16, 16, 4096, 64, queries=4096, is_causal=True),
)
GPU_CASES = (
    Case(1, 12, 12, 128, 64),
    Case(1, 32, 8, 512, 128),
    Case(1, 32, 8, 1024, 128),
    Case(1, 32, 8, 4096, 128),
    Case(1, 32, 8, 16384, 128),
    Case(1, 32, 32, 16384, 128),
    Case(8, 32, 8, 512, 128),
    Case(8, 32, 8, 4096, 128),
    Case(8, 32, 8, 16384, 128),
    Case(64, 32, 8, 1024, 128),
    Case(64, 32, 8, 4096, 128),
    # Several queries: long ones, and those of Llama, GPT-2, BERT-large (also padded) and ViT-large.
    Case(4, 32, 32, 4096, 128, queries=4096),
    Case(4, 32, 32, 4096, 128, queries=4096, is_causal=True),
    Case(4, 32, 32, 4096, 64, queries=4096),
    Case(4, 32, 32, 4096, 64, queries=4096, is_causal=True),
    Case(1, 32, 8, 512, 128, queries=512, is_causal=True),
    Case(1, 32, 8, 2048, 128, queries=2048, is_causal=True),
    Case(8, 32, 8, 2048, 128, queries=2048, is_causal=True),
    Case(1, 32, 8, 4096, 128, queries=512, has_mask=True),
    Case(8, 12, 12, 1024, 64, queries=1024, is_causal=True),
    Case(1, 12, 12, 128, 64, queries=128),
    Case(8, 16, 16, 512, 64, queries=512),
    Case(8, 16, 16, 512, 64, queries=512, has_mask=True),
    Case(32, 16, 16, 197, 64, queries=197),
    # Other widths: MiniLM, diffusion U-Nets (also of a text's keys), SigLIP, Phi-3.
    Case(32, 12, 12, 128, 32, queries=128, has_mask=True),
    Case(32, 12, 12, 256, 32, queries=256),
    Case(2, 8, 8, 4096, 40, queries=4096),
    Case(2, 8, 8, 77, 40, queries=4096),
    Case(2, 8, 8, 1024, 80, queries=1024),
    Case(8, 16, 16, 729, 72, queries=729),
    Case(1, 32, 32, 2048, 96, queries=2048, is_causal=True),
    # Few queries, as of a checked draft.
    Case(1, 32, 8, 4096, 128, queries=2, has_mask=True),
    Case(1, 32, 8, 1024, 128, queries=4, has_mask=True),
    Case(1, 32, 8, 16384, 128, queries=8, has_mask=True),
    Case(8, 32, 8, 2048, 128, queries=4, has_mask=True),
    Case(8, 12, 12, 1024, 64, queries=8, has_mask=True),
    Case(64, 32, 8, 1024, 128, queries=4, has_mask=True),
    Case(1, 32, 8, 4096, 128, queries=16, has_mask=True),
    Case(1, 32, 8, 4096, 128, queries=32, has_mask=True),
    Case(8, 32, 8, 2048, 128, queries=32, has_mask=True),
    Case(8, 16, 16, 32, 64, queries=32),
)
PAGED_CASES = (
    *(
        PagedCase(batch, 32, 8, keys, 128, size=size, seen=seen)
        for batch, keys in ((1, 16384), (8, 4096), (64, 1024))
        for size in (16, 64)
        for seen in (0, keys // 2)
    ),
    # Chunks of prompts. Pages of 8 rows are copied, but for 64 queries.
    *(
        PagedCase(batch, 32, 8, keys, 128, queries, size=size)
        for batch, keys, queries in (
            (1, 8192, 2048),
            (1, 16384, 512),
            (8, 4096, 128),
            (8, 4096, 64),
        )
        for size in (8, 16, 64, 256)
    ),
)
