"""One browser for all tests of a process: it takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.browser import Browser


@pytest.fixture(scope="session")
def browser_window() -> Iterator[Browser]:
    """A browser window; its tests are one group of pytest-xdist."""
    from tests.support.browser import running_browser  # noqa: PLC0415 -- few tests need selenium

    with running_browser() as browser:
        yield browser
