"""Triton's and Inductor's caches at a farm, on a GPU of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.gpu.drop_in import CHECKS, DropInProcesses
from tests.support.farm import Farm


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("compiler", list(CHECKS))
def test_a_second_process_compiles_nothing(compiler: str, farm: Farm, tmp_path: Path) -> None:
    program, problem_in = CHECKS[compiler]
    processes = DropInProcesses(farm.endpoint, farm.data_dir / "keys", tmp_path)
    made = processes.run(program, "publisher", publishes=True)

    assert problem_in(made, processes.run(program, "reader")) == ""
