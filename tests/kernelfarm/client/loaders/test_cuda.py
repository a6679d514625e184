"""Which target a GPU runs."""

from __future__ import annotations

import pytest

from kernelfarm.client.loaders.cuda import best_target


@pytest.mark.parametrize(
    ("capability", "target"),
    [
        ((9, 0), "cuda:sm_90a"),
        ((8, 6), "cuda:sm_80"),
        ((8, 9), "cuda:sm_89"),
        ((10, 3), None),
        ((7, 5), None),
    ],
)
def test_gpus_get_the_newest_target_that_they_run(capability, target):
    targets = ["cuda:sm_80", "cuda:sm_89", "cuda:sm_90a", "cuda:sm_100a", "cuda:sm_120a"]
    assert best_target(*capability, targets) == target
