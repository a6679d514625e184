"""Every case on a GPU of this machine, beside eager; without one they are reported as skipped."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.case import Case
from tests.gpu.operators import chosen_groups, operator_cases
from tests.gpu.run_case import problem_of
from tests.gpu.table import all_cases
from tests.support.farm import Farm

HAS_GPU = torch.cuda.is_available()
pytestmark = pytest.mark.skipif(not HAS_GPU, reason="needs an NVIDIA GPU")
TIMEOUT_S = 300.0


def right(case: Case, farm: Farm) -> bool:
    options = {"mode": "strict", "endpoint": farm.endpoint, "timeout_s": TIMEOUT_S}
    problem = problem_of(case, torch.device("cuda:0"), options)
    assert not problem
    return True


# The cases make tensors: without a GPU there is one, which is skipped.
CASES = [pytest.param(case, id=case.name) for case in all_cases([])] if HAS_GPU else [None]


@pytest.mark.parametrize("case", CASES)
def test_a_program_computes_what_eager_does(case: Case, vendor_farm: Farm) -> None:
    assert right(case, vendor_farm)


@pytest.mark.slow
def test_samples_of_every_operator_are_what_eager_gives(vendor_farm: Farm) -> None:
    for case in operator_cases(chosen_groups()):
        assert right(case, vendor_farm)
