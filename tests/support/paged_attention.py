"""Attention over keys and values in pages of a cache, as servers write it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

LAYOUTS = ("rows first", "heads first", "joined", "tokens")
"""Axes of a page: (rows, heads, width), (heads, rows, width), one axis, or a page of one row."""


@dataclass(frozen=True)
class PagedForm:
    """Queries (sequences, groups * heads, queries, width), keys in `pages` pages of each sequence.

    The mask shows each sequence some of its first keys: all queries the same ones, or with
    `is_checked` each query one more, as when a draft is checked or a prompt comes in chunks.
    Without a mask, `is_causal` shows query number i the keys up to i. `joins_table` gathers by a
    vector of pages. `seen` cuts keys off. With `repeats_heads`, each head of keys is repeated.
    """

    sequences: int = 2
    groups: int = 2
    heads: int = 3
    queries: int = 1
    width: int = 32
    size: int = 16
    pages: int = 19
    layout: str = "rows first"
    dtype: torch.dtype = torch.bfloat16
    table_dtype: torch.dtype = torch.int32
    has_mask: bool = True
    is_checked: bool = False
    is_causal: bool = False
    joins_table: bool = False
    seen: int | None = None
    repeats_heads: bool = False

    def operands(self, device: str = "cpu", seed: int = 0) -> tuple[Tensor, ...]:
        """Queries, caches of keys and values, a table of pages, lengths of the sequences."""
        torch.manual_seed(seed)
        found = 2 * self.sequences * self.pages
        axes = {
            "rows first": (found, self.size, self.groups, self.width),
            "heads first": (found, self.groups, self.size, self.width),
            "joined": (found, self.size * self.groups * self.width),
            "tokens": (found * self.size, self.groups, self.width),
        }[self.layout]
        query = torch.randn(self.sequences, self.groups * self.heads, self.queries, self.width)
        key, value = torch.randn(axes), torch.randn(axes)
        table = torch.randint(found, (self.sequences, self.pages)).to(self.table_dtype)
        if self.layout == "tokens":
            rows = torch.arange(self.size, dtype=self.table_dtype)
            table = (table[:, :, None] * self.size + rows).flatten(1)
        lengths = torch.randint(1, self.size * self.pages + 1, (self.sequences,))
        floats = (tensor.to(self.dtype) for tensor in (query, key, value))
        return tuple(tensor.to(device) for tensor in (*floats, table, lengths))

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, table: Tensor, lengths: Tensor
    ) -> Tensor:
        """What a layer does with its cache; the heads of a query lie side by side."""
        keys, values = self.gathered(key, table), self.gathered(value, table)
        mask = self.mask(lengths, keys.shape[2]) if self.has_mask else None
        if self.repeats_heads:
            keys, values = (
                x.unsqueeze(2).expand(-1, -1, self.heads, -1, -1).flatten(1, 2)
                for x in (keys, values)
            )
        is_grouped = self.heads > 1 and not self.repeats_heads
        found = functional.scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, is_causal=self.is_causal, enable_gqa=is_grouped
        )
        return found.transpose(1, 2).flatten(2)

    def decode(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        table: Tensor,
        lengths: Tensor,
        row: Tensor,
    ) -> Tensor:
        """Attention after the key and value of the last token, of `row`, are written to a page."""
        page, line = self._last(table, lengths)
        key[page, line] = row
        value[page, line] = 2 * row
        return self.attend(query, key, value, table, lengths)

    def decode_by_slots(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        table: Tensor,
        lengths: Tensor,
        row: Tensor,
    ) -> Tensor:
        """The same with one number for a page and a row of it."""
        page, line = self._last(table, lengths)
        slot = page * self.size + line
        key.flatten(0, 1)[slot] = row
        value.flatten(0, 1).index_copy_(0, slot, 2 * row)
        return self.attend(query, key, value, table, lengths)

    def prefill(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        table: Tensor,
        lengths: Tensor,
        rows: Tensor,
    ) -> Tensor:
        """Attention of a chunk of a prompt, after its `rows` are written behind earlier keys.

        `rows` are (sequences, queries, groups, width); lengths count them, too.
        """
        numbers = lengths[:, None] - self.queries + torch.arange(self.queries, device=table.device)
        page, line = table.gather(1, numbers // self.size).long(), numbers % self.size
        key[page, line] = rows
        value[page, line] = 2 * rows
        return self.attend(query, key, value, table, lengths)

    def _last(self, table: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """The page of the last key of each sequence, and its row there."""
        last = lengths[:, None] - 1
        return table.gather(1, last // self.size)[:, 0].long(), last[:, 0] % self.size

    def gathered(self, cache: Tensor, table: Tensor) -> Tensor:
        """Keys or values (sequences, groups, keys, width)."""
        sequences = table.shape[0]
        if self.joins_table:
            pages = cache.index_select(0, table.flatten()).unflatten(0, (sequences, -1))
        else:
            pages = functional.embedding(table, cache) if cache.dim() == 2 else cache[table]
        if self.layout == "joined":
            pages = pages.unflatten(-1, (self.size, self.groups, self.width))
        if self.layout == "heads first":
            found = pages.transpose(1, 2).flatten(2, 3)
        else:
            rows = pages if self.layout == "tokens" else pages.flatten(1, 2)
            found = rows.transpose(1, 2)
        return found[:, :, : self.seen]

    def mask(self, lengths: Tensor, keys: int) -> Tensor:
        """(sequences, 1, queries or 1, keys); some queries see no key."""
        last = lengths[:, None]
        if self.is_checked:
            last = last + torch.arange(self.queries, device=lengths.device) - self.queries
        return torch.arange(keys, device=lengths.device) < last[:, None, :, None]
