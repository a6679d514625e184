"""Whole models of public families through a farm: one graph, eager's numbers, few launches."""

from __future__ import annotations

import pytest
import torch

from examples.model_zoo import MODELS, model_of
from kernelfarm.client.compile_model import connect
from tests.support.launches import Launches
from tests.support.whole_models import Measured, errors, inductor_launches, launches_of

QUICK = ("llama-decode", "resnet")
ALLOWED_RATIO = 1.2
"""Launches by Inductor's, of any single model; the table's geomean has a bar of its own."""


@pytest.mark.parametrize("name", QUICK)
def test_a_model_is_as_exact_as_eager_in_few_launches(name: str, endpoint: str) -> None:
    check(name, "float32", endpoint)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_as_exact_as_eager(name: str, dtype: str, endpoint: str) -> None:
    check(name, dtype, endpoint)


def check(name: str, dtype: str, endpoint: str) -> None:
    row = Measured(name, dtype)
    with connect(endpoint, 120.0) as client:
        row.launches, row.graphs = launches_of(name, dtype, client)
    row.error, row.eager_error, row.largest = errors(model_of(name, getattr(torch, dtype)))
    row.inductor = _inductors(name, dtype)
    assert row.is_exact, row
    assert row.graphs == 1
    assert row.ratio is not None and row.ratio <= ALLOWED_RATIO, row


def _inductors(name: str, dtype: str) -> Launches:
    """As counted when the table was made; compiling it here would take most of the time."""
    return inductor_launches([f"{name} {dtype}"], is_counted=False)[f"{name} {dtype}"]
