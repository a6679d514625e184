"""Which depthwise convolutions kernels of processors compute."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kernelfarm.ir.depthwise import DepthwiseShape, refusal
from kernelfarm.targets import DepthwiseFacts

KNOWN = DepthwiseFacts(("f32",), 8, 25, 4096)
SHAPE = DepthwiseShape("f32", 24, (3, 5), (1, 2), 14, 1024)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({}, None),
        ({"dtype": "bf16"}, "of bf16, for which kernels were not timed"),
        ({"channels": 7}, "of fewer than 8 channels"),
        ({"sides": (1, 1), "padding": (0, 0)}, "with a window of one pixel"),
        ({"sides": (1, 2), "padding": (0, 0)}, None),
        ({"sides": (14, 3)}, "with a side of more than 13 pixels"),
        ({"padding": (3, 2)}, "with padding of a whole window"),
        (
            {"elements": 1025},
            "with a window of fewer than 25 pixels and images and results of more than 4096 bytes",
        ),
        ({"elements": 1025, "sides": (5, 5)}, None),
        ({"elements": None}, None),
        ({"columns": None}, "of rows of varying length"),
        ({"columns": 1}, "of rows of fewer than 2 or more than 512 pixels"),
        ({"columns": 513}, "of rows of fewer than 2 or more than 512 pixels"),
    ],
)
def test_a_reason_is_stated(changed: dict[str, Any], reason: str | None) -> None:
    assert refusal(replace(SHAPE, **changed), KNOWN) == reason
