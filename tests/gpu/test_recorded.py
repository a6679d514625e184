"""Calls that are replays of CUDA graphs, on a GPU of this machine; without one they are skipped."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.recorded import Running, problem_of_recording
from tests.gpu.recorded_scenarios import Scenario, all_scenarios

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.usefixtures("fresh_backend", "vendor_endpoint"),
]


@pytest.mark.parametrize("scenario", list(all_scenarios()), ids=lambda scenario: scenario.name)
def test_a_replay_gives_what_eager_gives(scenario: Scenario) -> None:
    assert problem_of_recording(scenario, Running(is_recorded=True), torch.device("cuda:0")) == ""
