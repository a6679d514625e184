"""The interpreter's process, which the tests of this room share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.codegen_triton.interpreted import end_interpreter


@pytest.fixture(scope="session", autouse=True)
def shared_interpreter() -> Iterator[None]:
    """The first test that needs the interpreter starts it; the session's end ends it."""
    yield
    end_interpreter()
