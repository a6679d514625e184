"""Attention with one query through a running farm: on Hopper, a template kernel computes it."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from kernelfarm.client.compile_model import connect
from kernelfarm.ir.program_ir import Launch
from tests.support.farm import TIMEOUT_S, Farm
from tests.support.traced_graphs import traced_one

WIDTH, HEADS, GROUPS, KEYS, PAGE = 1024, 16, 4, 2048, 16


class DecodeLayer(nn.Module):
    """The attention of a Llama's layer for one token, whose keys and values are in a cache."""

    def __init__(self) -> None:
        super().__init__()
        depth = WIDTH // HEADS
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.rows = nn.Linear(WIDTH, 2 * GROUPS * depth, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(
        self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, at: torch.Tensor
    ) -> torch.Tensor:
        key, value = self.rows(x).unflatten(-1, (2, GROUPS, -1)).permute(2, 0, 3, 1, 4)
        keys.index_copy_(2, at, key)
        values.index_copy_(2, at, value)
        query = self.query(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        mask = torch.arange(KEYS, device=x.device) <= at
        found = functional.scaled_dot_product_attention(
            query, keys, values, attn_mask=mask[None, None, None], enable_gqa=True
        )
        return x + self.out(found.transpose(1, 2).flatten(2))


def test_a_decode_step_of_attention_needs_no_framework_on_hopper(vendor_farm: Farm) -> None:
    with torch.no_grad():
        layer = DecodeLayer().bfloat16()
        x = torch.empty(1, 1, WIDTH, dtype=torch.bfloat16)
        cache = torch.empty(1, GROUPS, KEYS, WIDTH // HEADS, dtype=torch.bfloat16)
        at = torch.tensor([KEYS // 2])
        graph = traced_one(layer, x, cache, torch.empty_like(cache), at).graph
    client = connect(vendor_farm.endpoint, TIMEOUT_S)
    (program,) = client.compile(graph, ["cuda:sm_90a"])
    client.close()
    assert {type(step) for step in program.plan.steps} == {Launch}
    names = [name.rpartition("_")[0] for name in program.plan.kernel_names]
    assert names.count("attention_parts") == 1
    aligned, general = program.kernels[names.index("attention_parts")]
    assert not aligned.launch.spills
    assert not general.launch.spills
    assert aligned.launch.shared_bytes > general.launch.shared_bytes  # it copies ahead


class PagedLayer(DecodeLayer):
    """The same with keys and values in pages of a cache, which a table names."""

    def forward(
        self, x: torch.Tensor, cache: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor
    ) -> torch.Tensor:
        row = self.rows(x).unflatten(-1, (2, GROUPS, -1))[:, 0]
        last = lengths - 1
        page = table.gather(1, last[:, None] // PAGE)[:, 0].long()
        for number in range(2):
            cache[number][page, last % PAGE] = row[:, number]
        pages = (part[table].flatten(1, 2).transpose(1, 2) for part in cache)
        query = self.query(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        mask = torch.arange(KEYS, device=x.device) < lengths[:, None]
        found = functional.scaled_dot_product_attention(
            query, *pages, attn_mask=mask[:, None, None], enable_gqa=True
        )
        return x + self.out(found.transpose(1, 2).flatten(2))


def test_a_decode_step_reads_pages_where_they_are_on_hopper(vendor_farm: Farm) -> None:
    with torch.no_grad():
        layer = PagedLayer().bfloat16()
        x = torch.empty(2, 1, WIDTH, dtype=torch.bfloat16)
        cache = torch.empty(2, 500, PAGE, GROUPS, WIDTH // HEADS, dtype=torch.bfloat16)
        table = torch.zeros(2, KEYS // PAGE, dtype=torch.int32)
        graph = traced_one(layer, x, cache, table, torch.tensor([9, 900])).graph
    client = connect(vendor_farm.endpoint, TIMEOUT_S)
    (program,) = client.compile(graph, ["cuda:sm_90a"])
    client.close()
    assert {type(step) for step in program.plan.steps} == {Launch}
    names = [name.rpartition("_")[0] for name in program.plan.kernel_names]
    assert names.count("attention_parts") == 1
    aligned, _ = program.kernels[names.index("attention_parts")]
    assert not aligned.launch.spills
    # Neither the cache nor the pages of a step are copied.
    assert program.plan.arena_bytes.as_int() < 2 * KEYS * WIDTH
