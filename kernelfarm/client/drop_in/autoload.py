"""Installs the farm as Inductor's remote cache if `KERNELFARM_INDUCTOR_CACHE` is `on`.

`kernelfarm.autoload` calls it while PyTorch is imported, so a program needs no change.
"""

from __future__ import annotations

from kernelfarm.client.drop_in.fail_open import warn_once
from kernelfarm.client.settings import client_settings


def install_if_stated() -> None:
    """Reads the setting. A problem is a warning: an error would keep PyTorch from its import."""
    try:
        if client_settings().inductor_cache == "on":
            from kernelfarm.client.drop_in.inductor_cache import (  # noqa: PLC0415 -- has Inductor
                use_as_inductor_cache,
            )

            use_as_inductor_cache()
    except Exception as error:  # an invalid setting, or a PyTorch without these caches
        warn_once(f"KERNELFARM_INDUCTOR_CACHE: {type(error).__name__}: {error}")
