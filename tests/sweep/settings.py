"""The one place where the sweep reads the environment."""

from __future__ import annotations

import os
import secrets

SEED_VARIABLE = "KERNELFARM_SWEEP_SEED"


def slice_seed() -> int:
    """The seed of the random slice: from the environment, else a fresh one."""
    stated = os.environ.get(SEED_VARIABLE)
    return int(stated) if stated else secrets.randbelow(2**31)
