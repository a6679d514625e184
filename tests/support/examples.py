"""How many examples property tests draw: a third by default, all in a thorough run."""

from __future__ import annotations

import os

IS_THOROUGH = os.environ.get("KERNELFARM_TEST_EXAMPLES") == "all"
"""Set for `make test-thorough`."""


def examples(most: int) -> int:
    """The examples of a test that draws `most` in a thorough run."""
    return most if IS_THOROUGH else -(-most // 3)
