"""A few operators' first samples by a running farm, as the sweep's second mode runs them."""

from __future__ import annotations

import pytest

from tests.support.farm import Farm
from tests.sweep.one_sample import run_sample
from tests.sweep.records import RIGHT
from tests.sweep.samples import Task, operators, samples
from tests.sweep.through_farm import compile_by


@pytest.mark.parametrize("op", ["softmax", "nn.functional.max_pool2d", "linalg.inv", "addr"])
def test_a_first_sample_by_a_farm_gives_what_eager_gives(op: str, farm: Farm) -> None:
    task = Task(op, "f32", "forward")
    (sample,) = samples(operators()[op], task, 0, 1)
    found = run_sample(op, sample, "forward", compile_by(farm.endpoint))
    assert found.outcome in RIGHT, found.reason
    assert found.counts.graphs == 1
