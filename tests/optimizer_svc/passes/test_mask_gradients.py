"""Gradients of masks of numbers that kernels compute on some processors, also in blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kernelfarm.ir.program_ir import BufferKind
from kernelfarm.ir.text import parse_graph
from kernelfarm.targets import AttentionFacts, TargetFacts, target_facts
from optimizer_svc.pipeline import optimize
from tests.support.compiled_kernels import run_targets, unless_it_runs
from tests.support.in_process_compiler import Counts, compiled_for

PAIRS = "cpu:x86-64-v4-bf16-amd"
V3 = "cpu:x86-64-v3"
TYPES = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 2**-22}
B, H, WIDTH = 4, 6, 16
KNOWN = AttentionFacts(
    one_query=(),
    several_queries=("bf16", "f16", "f32"),
    least_queries=16,
    most_score_bytes=1 << 20,
    gradients=("bf16", "f16", "f32"),
)

Layer = Callable[..., Tensor]


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Attention whose layout no one sees."""
    found = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, enable_gqa=key.shape[1] != query.shape[1]
    )
    return found.transpose(1, 2).flatten(2) + 0


@dataclass(frozen=True)
class Form:
    """A mask's shape, and the extents of attention; the scores are divided in `blocks`, if any."""

    mask: tuple[int, ...]
    groups: int = H
    queries: int = 29
    keys: int = 37
    blocks: int = 0

    def operands(self, dtype: torch.dtype) -> list[Tensor]:
        """A mask hides a fifth of the keys, and all of them from the first query."""
        torch.manual_seed(0)
        shapes = ((self.queries, H), (self.keys, self.groups), (self.keys, self.groups))
        heads = [torch.randn(B, rows, count, WIDTH).transpose(1, 2) for rows, count in shapes]
        mask = torch.randn(self.mask).masked_fill(torch.rand(self.mask) < 0.2, -torch.inf)
        if mask.dim() > 1 and mask.shape[-2] > 1:
            mask[..., 0, :] = -torch.inf
        return [tensor.to(dtype) for tensor in (*heads, mask)]

    def facts(self, name: str, dtype: torch.dtype) -> TargetFacts:
        scores = B * H * self.queries * self.keys
        block_bytes = scores * dtype.itemsize // self.blocks if self.blocks else 1 << 23
        known = replace(KNOWN, rounded_shares=("bf16",) * (name == PAIRS), block_bytes=block_bytes)
        return replace(target_facts(name), attention=known)


FORMS = {
    "heads": Form((1, H, 29, 37)),
    "heads that share keys": Form((H, 29, 37), groups=2),
    "sequences": Form((B, 1, 29, 37)),
    "sequences whose heads share keys": Form((B, 1, 29, 37), groups=3),
    "queries and keys": Form((29, 37)),
    "all": Form((B, H, 29, 37)),
    "keys of heads": Form((B, H, 1, 37)),
    "keys": Form((37,)),
    "heads in blocks of heads": Form((1, H, 29, 37), blocks=12),
    "heads in blocks of sequences": Form((1, H, 29, 37), blocks=4),
    "sequences in blocks of heads": Form((B, 1, 29, 37), groups=3, blocks=12),
    "all in blocks of heads": Form((B, H, 29, 37), blocks=12),
    "heads in blocks of keys": Form((1, H, 40, 36), queries=40, keys=36, blocks=48),
    "keys in blocks of keys": Form((B, 1, 1, 36), queries=40, keys=36, blocks=48),
    "all in blocks of keys": Form((B, H, 40, 36), queries=40, keys=36, blocks=48),
}


def cases() -> list[object]:
    """Forms of masks on the targets whose code differs."""
    found = [
        pytest.param(target, dtype, form, marks=unless_it_runs(target))
        for target, dtype in ((PAIRS, torch.bfloat16), (V3, torch.float32))
        for form in FORMS
    ]
    found += [
        pytest.param(*run.values, torch.float16, name, marks=run.marks)
        for run in run_targets()
        for name in ("heads", "all in blocks of heads")
    ]
    return found


def gradients(layer: Layer, given: list[Tensor]) -> tuple[Tensor, ...]:
    """The gradients of queries, keys, values and the mask."""
    leaves = [tensor.detach().requires_grad_() for tensor in given]
    result = layer(*leaves)
    grad = torch.linspace(-1, 1, result.numel(), dtype=torch.float64).sin() * 2
    return torch.autograd.grad(result, leaves, grad.reshape(result.shape).to(result.dtype))


@pytest.mark.sweep
@pytest.mark.parametrize(("target", "dtype", "name"), cases())
def test_gradients_of_masks_are_those_of_float64(
    target: str, dtype: torch.dtype, name: str
) -> None:
    form, counts = FORMS[name], Counts()
    given = form.operands(dtype)
    ours = gradients(compiled_for(attend, form.facts(target, dtype), counts), given)
    assert not counts.externs
    assert counts.launches >= 3 * form.blocks
    exact = gradients(attend, [tensor.double() for tensor in given])
    for found, reference in zip(ours, exact, strict=True):
        assert (found.dtype, found.shape) == (dtype, reference.shape)
        error = (found.double() - reference).abs().max()
        assert error <= 4 * TYPES[dtype] * reference.abs().max()


TEXT = """\
graph prims 1
%0: T[4, 8, 512, 64]@[262144, 64, 512, 1] = input "tokens"
%1: f32[4, 8, 512]@[4096, 512, 1] = input "sums"
%2: T[MASK] = input "bias"
%3: T[4, 8, 512, 64]@[262144, 64, 512, 1], %4: T[4, 8, 512, 64]@[262144, 64, 512, 1], %5: T[4, 8, 512, 64]@[262144, 64, 512, 1], %6: T[MASK] = extern(%0, %0, %1, %0, %0, %0, %2; is_contraction=true, node=0, op="kernelfarm.attention_backward.default", scale=1.0) from [0]
END
"""
BIAS = "8, 512, 512]@[262144, 512, 1"
WHOLE = "4, 8, 512, 512]@[2097152, 262144, 512, 1"
OF_HEADS = "T[4, 8, 512, 64]@[262144, 64, 512, 1]"
RETURNED = f"return %3: {OF_HEADS}, %4: {OF_HEADS}, %5: {OF_HEADS}, %6: T[MASK]"
SUMMED = f"""\
%7: f32[4, 8, 512, 512] = convert(%6; dtype=f32) from [1]
%8: f32[8, 512, 512] = sum(%7; dims=[0]) from [1]
%9: T[8, 512, 512] = convert(%8; dtype=T) from [1]
return %3: {OF_HEADS}, %4: {OF_HEADS}, %5: {OF_HEADS}, %9: T[8, 512, 512]@[262144, 512, 1]"""


@pytest.mark.parametrize(
    ("dtype", "mask", "end", "elems"),
    [
        ("f32", BIAS, RETURNED, 1 << 21),
        ("bf16", BIAS, RETURNED, 1 << 21),
        ("f32", WHOLE, RETURNED, 1 << 20),
        ("bf16", WHOLE, RETURNED, 1 << 21),
        ("f32", WHOLE, SUMMED, 1 << 20),
        ("bf16", WHOLE, SUMMED, 1 << 23),
    ],
)
def test_memory_holds_scores_of_one_block(dtype: str, mask: str, end: str, elems: int) -> None:
    """There are 2 ** 23 scores, and as many shares.

    Memory also holds sums of 2 ** 21 of them, and if a sum of bf16 reads the gradient of a mask of
    all scores, that gradient.
    """
    text = TEXT.replace("END", end).replace("[MASK]", f"[{mask}]")
    text = text.replace("T[", f"{dtype}[").replace("=T)", f"={dtype})")
    found = optimize(parse_graph(text), target_facts(PAIRS))
    report = dict(found.stages)["report"]
    assert "attention: 1 of gradients, also of a mask, by kernels" in report
    block = (1 << 23) // (8 if dtype == "f32" else 4)
    assert f"blocks of {block} scores each" in report
    buffers = found.program.plan.buffers
    sizes = [b.size_elems.constant for b in buffers if b.kind is BufferKind.TEMPORARY]
    assert max(sizes) == elems
