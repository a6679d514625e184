"""Each of the client's tests begins with a backend that knows nothing."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _anew(fresh_backend: None) -> None:
    """Makes `fresh_backend` every test's."""
