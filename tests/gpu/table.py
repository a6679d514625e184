"""All cases."""

from __future__ import annotations

from collections.abc import Iterator

from tests.gpu.attention import (
    attention_cases,
    flash_cases,
    flash_gradient_cases,
    mask_gradient_cases,
)
from tests.gpu.case import Case
from tests.gpu.depthwise import depthwise_cases
from tests.gpu.half_types import half_type_cases
from tests.gpu.integer_weights import integer_cases
from tests.gpu.memory import gather_cases, layout_cases, scatter_cases, update_cases
from tests.gpu.numbers import random_cases, type_cases
from tests.gpu.operators import Groups, operator_cases
from tests.gpu.ordered import order_cases, reduction_cases, row_cases, scan_cases
from tests.gpu.paged_attention import paged_attention_cases, paged_prefill_cases
from tests.gpu.pixel_convolutions import pixel_cases, window_cases
from tests.gpu.training import training_cases


def all_cases(groups: Groups) -> Iterator[Case]:
    """Programs written for what GPUs may get wrong, then samples of every operator."""
    yield from order_cases()
    yield from scan_cases()
    yield from row_cases()
    yield from reduction_cases()
    yield from scatter_cases()
    yield from update_cases()
    yield from gather_cases()
    yield from layout_cases()
    yield from random_cases()
    yield from type_cases()
    yield from half_type_cases()
    yield from integer_cases()
    yield from attention_cases()
    yield from paged_attention_cases()
    yield from paged_prefill_cases()
    yield from flash_cases()
    yield from flash_gradient_cases()
    yield from mask_gradient_cases()
    yield from depthwise_cases()
    yield from pixel_cases()
    yield from window_cases()
    yield from training_cases()
    yield from operator_cases(groups)
