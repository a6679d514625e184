"""Compiled kernels that update buffers in place give what the loop interpreter gives."""

from __future__ import annotations

import pytest

from tests.support.compiled_kernels import both
from tests.support.loop_kernels.updating import updating_buffers, updating_kernels

pytestmark = pytest.mark.usefixtures("each_cpu_target")

KERNELS = updating_kernels()


@pytest.mark.parametrize("name", KERNELS)
def test_a_compiled_update_equals_the_loop_interpreter(name: str) -> None:
    both(KERNELS[name], updating_buffers(KERNELS[name]), {})
