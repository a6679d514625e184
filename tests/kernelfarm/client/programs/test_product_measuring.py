"""Measuring the candidates of a product on this processor, with programs of a real farm."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from kernelfarm.client import counters
from kernelfarm.client.farm.access import FarmAccess
from kernelfarm.client.farm.compile_options import CompileOptions
from kernelfarm.client.loaders.by_device import host_support
from kernelfarm.client.loaders.cpu_timer import CpuTimer
from kernelfarm.client.programs.product_measuring import Measuring, random_tensor
from kernelfarm.client.programs.product_subjects import (
    Candidate,
    ProductSubject,
    product_subjects,
)
from kernelfarm.client.settings import client_settings
from kernelfarm.digest import program_key
from kernelfarm.dtypes import KERNEL_DTYPES, DType
from kernelfarm.errors import UnavailableError
from kernelfarm.ir.algebra.expr import as_expr
from kernelfarm.ir.graph_ir import TensorType
from kernelfarm.ir.product_choice import NodeChoice, ProductChoice
from tests.support.farm import TIMEOUT_S, Farm
from tests.support.traced_graphs import traced_one

REFUSED = CompileOptions(node_choices=(NodeChoice(99, ProductChoice.OWN),))
"""Options that the farm refuses: the graph has no such node."""


@pytest.fixture
def measuring(farm: Farm) -> Iterator[Measuring]:
    counters.reset()
    access = FarmAccess(client_settings(endpoint=farm.endpoint, timeout_s=TIMEOUT_S))
    yield Measuring(access, host_support(), CpuTimer(), 30.0)
    access.client.close()


def subject() -> ProductSubject:
    with torch.no_grad():
        captured = traced_one(lambda x, w: (x @ w).relu(), torch.ones(16, 80), torch.ones(80, 144))
    (found,) = product_subjects(captured, host_support(), CompileOptions(), CpuTimer())
    return found


def with_refused(found: ProductSubject, *numbers: int) -> ProductSubject:
    graph = found.fragment.captured.graph
    refused = Candidate(REFUSED, program_key(graph, host_support().target, REFUSED.pairs()))
    candidates = [*found.candidates]
    for number in numbers:
        candidates[number] = refused
    return replace(found, candidates=tuple(candidates))


def test_each_candidate_has_a_time(measuring: Measuring) -> None:
    times_ms = measuring.times_ms(subject())
    assert len(times_ms) == 2 and all(0 < time_ms < 1000 for time_ms in times_ms)
    assert counters.snapshot()["tuning.measured"] == 1


def test_a_candidate_that_the_farm_refuses_is_left_out(measuring: Measuring) -> None:
    times_ms = measuring.times_ms(with_refused(subject(), 1))
    assert times_ms[0] > 0 and times_ms[1] == 0
    assert counters.snapshot()["tuning.products.failures.invalid_graph"] == 1


def test_a_product_without_candidates_is_not_measured(measuring: Measuring) -> None:
    with pytest.raises(UnavailableError, match=r"product: 16 x 144 \(node 0\): no candidate runs"):
        measuring.times_ms(with_refused(subject(), 0, 1))


@pytest.mark.parametrize("dtype", KERNEL_DTYPES)
def test_random_inputs_have_the_strides_and_types_of_the_graph(dtype: DType) -> None:
    sizes = tuple(map(as_expr, (2, 3, 5)))
    for strides in ((15, 5, 1), (5, 10, 2), (0, 1, 0)):
        kind = TensorType(dtype, sizes, tuple(map(as_expr, strides)))
        made = random_tensor(kind, torch.device("cpu"), torch.Generator())
        assert made.shape == (2, 3, 5) and made.stride() == strides
