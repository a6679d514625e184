"""Checks after fuzzing that the farm still compiles, and that results equal eager's."""

from __future__ import annotations

import os
import tempfile
from random import Random

from tests.support.farm import TIMEOUT_S


def check_new_program(endpoint: str) -> None:
    """Compiles a model that the farm does not have yet, and compares its numbers with eager's.

    Raises:
        AssertionError: they differ.
        KernelfarmError: the farm does not compile it.
    """
    # Fuzzing codecs alone needs no torch.
    import torch  # noqa: PLC0415

    from examples.real_inputs import h  # noqa: PLC0415
    from kernelfarm.client import torch_backend  # noqa: PLC0415
    from tests.support.accuracy import assert_as_good_as_eager  # noqa: PLC0415

    def backend(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        asked = {"endpoint": endpoint, "strict": True, "timeout_s": TIMEOUT_S}
        return torch_backend.kernelfarm(module, inputs, options=asked)

    rows, columns = Random(os.getpid()).randrange(100, 10_000), 24
    a, b = torch.randn(rows, columns), torch.randn(rows, columns)
    torch._dynamo.reset()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        before = os.environ.get("KERNELFARM_DISK_CACHE_DIR")
        os.environ["KERNELFARM_DISK_CACHE_DIR"] = folder
        try:
            result = torch.compile(h, backend=backend)(a, b)
        finally:
            os.environ.pop("KERNELFARM_DISK_CACHE_DIR")
            if before is not None:
                os.environ["KERNELFARM_DISK_CACHE_DIR"] = before
    assert_as_good_as_eager(result, h, a, b)
