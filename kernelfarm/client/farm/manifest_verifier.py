"""Verifies manifests by trusted keys: those that settings pin, or those of a local farm.

Without pinned keys, a client asks a farm on this machine (loopback or unix socket) for its keys:
a process that can answer there could do more harm anyway. The client stores these keys beside the
disk tier, so that later processes start without the farm; it does not use a key file that another
user may have written. A farm on another machine requires pinned keys. The client rereads their file
when it changes, and no longer trusts a key that was removed.
"""

from __future__ import annotations

import ipaddress
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from kernelfarm.client.disk.files import read_sealed, remove, write_sealed
from kernelfarm.client.settings import ClientSettings
from kernelfarm.errors import CallerError, UntrustedKeyError
from kernelfarm.signing import CacheAddress, Keyring, Manifest, Space, check_manifest
from kernelfarm.signing.key_files import keyring_from_text, keyring_to_text, read_keyring
from kernelfarm.signing.statements import StatementSignature, check_statement

FetchKeys = Callable[[], Keyring | None]
"""Fetches a farm's public keys; returns None for a farm that signs nothing."""


class UnsignedFarmWarning(UserWarning):
    """The client loads native code that is not signed."""


class ManifestVerifier:
    """Verifies manifests of one farm; `remembered` is the file for keys that are not pinned."""

    def __init__(
        self, settings: ClientSettings, fetch: FetchKeys, remembered: Path | None = None
    ) -> None:
        self._settings = settings
        self._fetch = fetch
        self._remembered = remembered
        self._lock = threading.Lock()
        self._keyring: Keyring | None = None
        self._pinned_as: tuple[int, ...] | None = None

    def check(self, manifest: Manifest, address: CacheAddress) -> None:
        """Raises if a manifest is not trusted; reads the keys again if its key is unknown.

        Raises:
            IntegrityError: the class says what is wrong; see `kernelfarm.signing.check_manifest`.
            CallerError: the file of pinned keys cannot be read.
        """
        if self._settings.signing == "off" and address.space is Space.TRACES:
            raise UntrustedKeyError(
                "a shared trace must be signed, but KERNELFARM_SIGNING=off accepts no keys"
            )
        if self._settings.signing == "off":
            _warn_unsigned(self._settings.endpoint)
            check_manifest(manifest, address, None, time.time())
            return
        try:
            check_manifest(manifest, address, self._current_keyring(), time.time())
        except UntrustedKeyError:
            # Key rotation: the known keys may be older than the manifest.
            check_manifest(manifest, address, self._reload(), time.time())

    def check_statement(self, stated: StatementSignature, domain: str, content: bytes) -> None:
        """Raises if no trusted key for traces signed a statement; see `check`.

        Raises:
            IntegrityError: the class says what is wrong.
        """
        try:
            check_statement(stated, domain, content, self._current_keyring(), time.time())
        except UntrustedKeyError:
            check_statement(stated, domain, content, self._reload(), time.time())

    def keyring(self) -> Keyring:
        """The trusted keys.

        Raises:
            UntrustedKeyError, UnavailableError: no keys are known.
            CallerError: the file of pinned keys cannot be read.
        """
        return self._current_keyring()

    def accepts_traces(self, *, may_fetch_keys: bool) -> bool:
        """True if a trusted key may sign traces.

        With `may_fetch_keys`, the client asks a farm on this machine for keys that are not known
        yet.

        Raises:
            UntrustedKeyError, UnavailableError: no keys are known.
            CallerError: the file of pinned keys cannot be read.
        """
        if self._settings.signing == "off":
            return False
        if not may_fetch_keys and self._settings.trusted_keys_file is None:
            keyring = self._keyring or self._load_keyring()
        else:
            keyring = self._current_keyring()
        return keyring is not None and any(k.space is Space.TRACES for k in keyring.keys)

    def _current_keyring(self) -> Keyring:
        with self._lock:
            pinned = self._settings.trusted_keys_file
            if self._keyring is None or (pinned and _version(pinned) != self._pinned_as):
                self._keyring = self._load_keyring() or self._fetch_keyring()
            return self._keyring

    def _reload(self) -> Keyring:
        with self._lock:
            self._keyring = self._fetch_keyring()
            return self._keyring

    def _load_keyring(self) -> Keyring | None:
        path = self._remembered
        if self._settings.trusted_keys_file is not None or path is None:
            return None
        try:
            return keyring_from_text(read_sealed(path).decode(), path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, CallerError):  # the keys are fetched again
            remove(path)
            return None

    def _fetch_keyring(self) -> Keyring:
        pinned, endpoint = self._settings.trusted_keys_file, self._settings.endpoint
        if pinned is not None:
            self._pinned_as = _version(pinned)
            return read_keyring(pinned)
        if not is_on_this_machine(endpoint):
            raise UntrustedKeyError(
                f"no keys are pinned for the farm at {endpoint}: set KERNELFARM_TRUSTED_KEYS_FILE"
                " to its public.json"
            )
        keyring = self._fetch()
        if keyring is None:
            raise UntrustedKeyError(
                f"the farm at {endpoint} signs nothing; to accept it unsigned, set"
                " KERNELFARM_SIGNING=off"
            )
        if self._remembered is not None:
            with suppress(OSError):  # then the next process fetches them again
                write_sealed(self._remembered, keyring_to_text(keyring.keys).encode())
        return keyring


def describe_trust(settings: ClientSettings) -> tuple[str, bool]:
    """Describes the trusted keys; False if programs are not verified, or are all refused.

    Raises:
        CallerError: the file of pinned keys cannot be read.
    """
    if settings.signing == "off":
        return "signatures are not checked (KERNELFARM_SIGNING=off)", False
    if settings.trusted_keys_file is not None:
        names = ", ".join(key.key_id for key in read_keyring(settings.trusted_keys_file).keys)
        return f"pinned by {settings.trusted_keys_file}: {names}", True
    if is_on_this_machine(settings.endpoint):
        return "the keys of the farm on this machine; none are pinned", True
    return "none are pinned: every program is refused", False


def describe_traces(settings: ClientSettings) -> tuple[str, bool]:
    """Describes the traces in use; False if only the client's own traces are used.

    Raises:
        CallerError: the file of pinned keys cannot be read.
    """
    pinned = settings.trusted_keys_file
    keys = () if pinned is None else read_keyring(pinned).keys
    names = [key.key_id for key in keys if key.space is Space.TRACES]
    is_asked = is_on_this_machine(settings.endpoint) and pinned is None
    if settings.signing == "off" or not (names or is_asked):
        return "only this client's own: no key for traces is trusted", False
    state = f"those signed by {', '.join(names)}" if names else "those of the farm on this machine"
    if settings.trace_key_file is not None:
        state += f"; this client publishes its own with {settings.trace_key_file}"
    return state, True


def describe_packages(settings: ClientSettings) -> tuple[str, bool]:
    """Describes whose packages are loaded; False if they are wanted, but nobody's are trusted.

    Raises:
        CallerError: the file of pinned keys cannot be read.
    """
    if settings.packages == "off":
        return "off (KERNELFARM_PACKAGES): models are traced", True
    pinned = settings.trusted_keys_file
    keys = () if pinned is None else read_keyring(pinned).keys
    names = [key.key_id for key in keys if key.space is Space.TRACES]
    if settings.signing == "off" or not names:
        return "none: no key for traces is pinned", False
    return f"those signed by {', '.join(names)}, whose code runs here", True


def is_on_this_machine(endpoint: str) -> bool:
    """True for unix sockets and loopback addresses."""
    if endpoint.startswith(("unix:", "unix-abstract:")):
        return True
    host = endpoint.removeprefix("dns:").lstrip("/").rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _version(path: Path) -> tuple[int, ...] | None:
    """A value that changes when the file changes; None if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


_warned: set[str] = set()


def _warn_unsigned(endpoint: str) -> None:
    if endpoint in _warned:
        return
    _warned.add(endpoint)
    warnings.warn(
        f"kernelfarm: programs of the farm at {endpoint} are accepted without signatures"
        " (KERNELFARM_SIGNING=off): any process that answers there can run code in this one",
        UnsignedFarmWarning,
        stacklevel=2,
    )
