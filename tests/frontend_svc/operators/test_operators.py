"""Every operator that decomposes equals eager, with static and with symbolic shapes."""

from __future__ import annotations

from collections import defaultdict

import pytest
import torch

from frontend_svc.operators import DECOMPOSED
from tests.support.operator_samples.table import calls
from tests.support.single_operator import Call, assert_equals_eager

WITHOUT_DEFINED_VALUES = {
    "aten.empty.memory_format",
    "aten.empty_like.default",
    "aten.empty_permuted.default",
    "aten.empty_strided.default",
    "aten.new_empty.default",
    "aten.new_empty_strided.default",
}

TESTED_IN_FILES_OF_THEIR_OWN = {
    "aten._embedding_bag_forward_only.default",
    "aten._fused_rms_norm_backward.default",
    "aten._masked_scale.default",
}
"""Some results are omitted, or PyTorch has no kernel for the CPU."""

RANDOM = ("random.choices", "random.numbers")
"""Families whose values are random: `test_random_numbers` checks distributions."""

OF_STATIC_SIZES_ONLY = {
    "aten.adaptive_max_pool2d.default",
    "aten.adaptive_max_pool3d.default",
    # PyTorch's shape rules for these accept no symbols.
    "aten.hardshrink_backward.default",
    "aten.softshrink_backward.default",
    # The Prims depend on the number of pixels or elements.
    "aten._upsample_bicubic2d_aa.default",
    "aten._upsample_bicubic2d_aa.vec",
    "aten._upsample_bilinear2d_aa.default",
    "aten._upsample_bilinear2d_aa.vec",
    "aten.fractional_max_pool2d.default",
    "aten.fractional_max_pool3d.default",
    # PyTorch has no shape rules for these.
    "aten._add_relu.Scalar",
    "aten._aminmax.default",
    "aten._aminmax.dim",
    "aten._logcumsumexp.default",
    "aten._histogramdd_bin_edges.default",
    "aten._histogramdd_from_bin_cts.default",
    "aten._histogramdd_from_bin_tensors.default",
    "aten.histogram.bin_ct",
    "aten.histogram.bins_tensor",
    # The framework runs these for rows of symbolic length.
    "aten.kthvalue.default",
    "aten.median.default",
    "aten.median.dim",
    "aten.mode.default",
    "aten.nanmedian.default",
    "aten.nanmedian.dim",
    "aten.sort.default",
    "aten.sort.stable",
    "aten.topk.default",
}

SAMPLES: dict[str, list[Call]] = defaultdict(list)
for _call in calls():
    SAMPLES[_call.op].append(_call)


@pytest.mark.filterwarnings("ignore:var.*degrees of freedom")
@pytest.mark.parametrize("op", sorted(SAMPLES))
def test_prims_of_an_operator_equal_eager(op: str) -> None:
    for call in SAMPLES[op]:
        assert_equals_eager(call, is_symbolic=False)


SYMBOLIC = sorted(SAMPLES.keys() - OF_STATIC_SIZES_ONLY)


@pytest.mark.parametrize("op", SYMBOLIC[::2])
def test_prims_with_symbolic_sizes_equal_eager(op: str) -> None:
    """Every second operator: most share their decomposition with a neighbour by name."""
    assert_equals_eager(SAMPLES[op][0], is_symbolic=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:var.*degrees of freedom")
@pytest.mark.parametrize("op", SYMBOLIC)
def test_all_samples_with_symbolic_sizes_equal_eager(op: str) -> None:
    for call in SAMPLES[op]:
        assert_equals_eager(call, is_symbolic=True)


def test_every_operator_that_decomposes_has_a_sample() -> None:
    without = DECOMPOSED.keys() - SAMPLES.keys()
    without -= {name for name, operator in DECOMPOSED.items() if operator.family in RANDOM}
    assert without == WITHOUT_DEFINED_VALUES | TESTED_IN_FILES_OF_THEIR_OWN


def test_every_name_in_the_table_is_an_operator_of_this_torch() -> None:
    for name in DECOMPOSED:
        namespace, op, overload = name.split(".")
        packet = getattr(getattr(torch.ops, namespace), op)
        assert overload in packet.overloads(), f"{name}: overloads are {packet.overloads()}"


def test_parameters_have_the_operator_s_own_names_in_its_order() -> None:
    """The client sends arguments by position, and keyword arguments by PyTorch's names."""
    for name, operator in DECOMPOSED.items():
        theirs = schema_of(name).arguments
        positional = [a.name for a in theirs if not a.kwarg_only]
        every = {a.name for a in theirs}
        ours = [p.name for p in operator.signature.parameters]
        in_order = [p.name for p in operator.signature.parameters if p.is_positional]
        # A function for several overloads may have a parameter that one of them lacks.
        shared = [n for n in in_order if n in positional]
        assert shared == [n for n in positional if n in in_order], f"{name}: {in_order}"
        unread = every - PLACEMENT - set(ours)
        assert not unread, f"{name}: {unread} are not read"


def schema_of(name: str) -> torch.FunctionSchema:
    namespace, op, overload = name.split(".")
    schema: torch.FunctionSchema = getattr(
        getattr(getattr(torch.ops, namespace), op), overload
    )._schema
    return schema


PLACEMENT = {"device", "layout", "memory_format", "non_blocking", "pin_memory"}
