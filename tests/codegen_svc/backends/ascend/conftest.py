"""What most of these modules need."""

from __future__ import annotations

import pytest

from codegen_svc.backends.ascend.adapter import find_adapter


@pytest.fixture
def adapter() -> None:
    """Skips the test where the tool is missing that lowers Triton to Linalg."""
    if find_adapter() is None:
        pytest.skip("NOT RUN: triton-adapter-opt")
