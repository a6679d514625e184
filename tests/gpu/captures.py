"""The graphs of a case, as they are captured on a device."""

from __future__ import annotations

import torch

from kernelfarm.client.capture.captured import CapturedGraph
from tests.gpu.case import Case, called, on
from tests.support.traced_graphs import recording


def captured_of(case: Case, device: torch.device, target: str | None = None) -> list[CapturedGraph]:
    """The graphs of a case, in the order of compilation; they run as they are.

    `target` is that of the programs; training graphs depend on it.
    """
    found: list[CapturedGraph] = []
    torch._dynamo.reset()
    run = torch.compile(
        case.function, backend=recording(found, target=target), dynamic=case.dynamic
    )
    for make in case.arguments:
        called(case, run, tuple(on(device, tensor, case.offset) for tensor in make()))
    return found
