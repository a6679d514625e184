"""Everything that a process needs for one farm: a client, the disk tier and a watch."""

from __future__ import annotations

import hashlib
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kernelfarm.client.disk.folder import tier_folder
from kernelfarm.client.disk.tier import DiskTier
from kernelfarm.client.farm.client import FarmClient
from kernelfarm.client.farm.invalidation_state import KnownAtRequest
from kernelfarm.client.farm.invalidation_watch import InvalidationWatch, watch_of
from kernelfarm.client.farm.recent_traces import RecentTraces
from kernelfarm.client.process.exit import close_at_exit
from kernelfarm.client.settings import ClientSettings
from kernelfarm.errors import UnavailableError

if TYPE_CHECKING:
    from kernelfarm.client.farm.cache_client import CacheAdmin

PAUSE_AFTER_FAILURE_S = 10.0
"""How long graphs run eager without a call to the farm after it did not answer."""

WATCH_TIMEOUT_S = 1.0
"""How long a look-up waits for missed invalidations; if the farm takes longer, the client treats it
as away."""

STATE_SUFFIX = ".json"
"""Of the file with the farm's invalidations."""

_failures: dict[str, float] = {}


class FarmAccess:
    """One object for each process and settings; its channels and threads do not survive a fork."""

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        root = tier_folder(settings)
        keys = None if root is None else farm_file(root, settings, ".keys.json")
        state = None if root is None else farm_file(root, settings, STATE_SUFFIX)
        self.client = FarmClient(settings, keys)
        close_at_exit(self.client)
        self.recent_traces = RecentTraces()
        self.disk = None if root is None else DiskTier(root, settings.disk_cache_bytes)
        self.watch: InvalidationWatch = watch_of(
            settings.endpoint, state, partial(_connected, settings)
        )

    @property
    def tags(self) -> tuple[str, ...]:
        """The client's own tags, in addition to those of each program."""
        return (f"model:{self.settings.model}",) if self.settings.model else ()

    def wait_for_invalidations(self) -> None:
        """Waits until the client has received missed invalidations, but not for a silent farm."""
        self.watch.wait(WATCH_TIMEOUT_S)

    def known_now(self) -> KnownAtRequest:
        """The invalidations that are known before a request that is sent now."""
        return KnownAtRequest(self.watch.invalidations, time.time())

    @property
    def is_away(self) -> bool:
        """True if the farm did not answer in the last `PAUSE_AFTER_FAILURE_S` seconds.

        Always False in mode `strict`, in which every graph asks the farm.
        """
        failed_s = _failures.get(self.settings.endpoint)
        is_recent = failed_s is not None and time.monotonic() - failed_s < PAUSE_AFTER_FAILURE_S
        return is_recent and self.settings.mode != "strict"

    def check_recent_failure(self) -> None:
        """Raises if the farm is away.

        Raises:
            UnavailableError: see `is_away`.
        """
        if self.is_away:
            raise UnavailableError(
                f"the farm at {self.settings.endpoint} did not answer just now; it is asked again"
                f" within {PAUSE_AFTER_FAILURE_S:.0f} s"
            )

    def note_failure(self) -> None:
        """Records that the farm does not answer."""
        _failures[self.settings.endpoint] = time.monotonic()


def _connected(settings: ClientSettings) -> CacheAdmin:
    from kernelfarm.client.farm.cache_client import CacheAdmin  # noqa: PLC0415 -- has gRPC

    return CacheAdmin(
        settings.endpoint,
        settings.bearer(),
        settings.tls(),
        allow_cleartext=settings.allow_cleartext_token,
    )


def farm_file(root: Path, settings: ClientSettings, suffix: str) -> Path:
    """A file in which processes store the farm's invalidations or keys."""
    stated = f"{settings.endpoint}\n{settings.namespace}".encode()
    return root / "farms" / f"{hashlib.sha256(stated).hexdigest()[:16]}{suffix}"
