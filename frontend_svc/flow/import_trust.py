"""Which entries of another farm this farm accepts for imports."""

from __future__ import annotations

import time
from collections.abc import Callable

from frontend_svc.settings import FrontendSettings
from kernelfarm.cache import StoredVariant
from kernelfarm.errors import CallerError, ExpiredManifestError
from kernelfarm.signing import CacheAddress, Keyring, check_content, check_manifest
from kernelfarm.signing.key_files import read_keyring


class ImportTrust:
    """Verifies what frontends of other farms signed, by the keys that this farm trusts for it."""

    def __init__(self, settings: FrontendSettings, clock: Callable[[], float] = time.time) -> None:
        path = settings.import_keys_file
        self._keyring: Keyring | None = settings.keyring() if path is None else read_keyring(path)
        self._is_signed = settings.is_signed
        self._max_age_s = settings.import_max_age_s
        self._clock = clock

    def check(self, stored: StoredVariant, kind: str) -> None:
        """Verifies the signature and the content of an entry, and that it is not too old.

        Raises:
            CallerError: this farm signs nothing.
            IntegrityError: no trusted key signed it, it was changed, or it is too old.
        """
        if self._keyring is None or not self._is_signed:
            raise CallerError(f"this farm signs nothing, so it cannot import a {kind}")
        manifest, now_s = stored.manifest, self._clock()
        # Its validity limits how long clients use it without their farm, not when it is imported.
        address = CacheAddress(manifest.namespace, manifest.space, manifest.key)
        check_manifest(manifest, address, self._keyring, min(now_s, manifest.not_after_s))
        check_content(manifest, stored.content)
        age_s = now_s - manifest.not_after_s
        if age_s > self._max_age_s:
            raise ExpiredManifestError(
                f"{kind} {manifest.key.hex()[:16]} was valid until {age_s / 86400:.1f} days ago;"
                f" this farm imports up to {self._max_age_s / 86400:.1f} days later"
                " (KERNELFARM_IMPORT_MAX_AGE_S): export it again"
            )
