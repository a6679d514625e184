"""Settings about signatures, for whoever publishes into the cache or reads from it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from kernelfarm.errors import CallerError
from kernelfarm.service.settings import ServiceSettings
from kernelfarm.signing import Keyring, Signer, Space
from kernelfarm.signing.key_files import read_keyring, read_signer


class SigningSettings(ServiceSettings):
    """`KERNELFARM_SIGNING=off` states that a farm signs nothing; it is never taken for granted."""

    signing: Literal["required", "off"] = "required"
    """With `required` the service does not start without its keys; `kernelfarm keys` makes some."""
    program_key_file: Path | None = None
    """The frontends' private key."""
    kernel_key_file: Path | None = None
    """The workers' private key."""
    trusted_keys_file: Path | None = None
    """Public keys that are believed, those of rotated keys too."""
    verified_bytes: int = Field(default=32 * 1024 * 1024, ge=0)
    """Memory, for each key space, for manifests whose signatures were verified."""

    @property
    def is_signed(self) -> bool:
        """False where the farm states that it signs nothing."""
        return self.signing == "required"

    def signer(self, space: Space) -> Signer | None:
        """Who signs a space's manifests; None where nothing is signed.

        Raises:
            CallerError: the key is not set or cannot be read.
        """
        if not self.is_signed:
            return None
        is_program = space is Space.PROGRAMS
        path = self.program_key_file if is_program else self.kernel_key_file
        return read_signer(_given("PROGRAM" if is_program else "KERNEL", path), space)

    def keyring(self) -> Keyring | None:
        """Who is believed; None where nothing is signed.

        Raises:
            CallerError: the file is not set or cannot be read.
        """
        if not self.is_signed:
            return None
        return read_keyring(_given("TRUSTED", self.trusted_keys_file))


def _given(what: str, path: Path | None) -> Path:
    if path is None:
        name = (
            "KERNELFARM_TRUSTED_KEYS_FILE" if what == "TRUSTED" else f"KERNELFARM_{what}_KEY_FILE"
        )
        raise CallerError(
            f"{name} is not set: make keys with `kernelfarm keys FOLDER`, or state with"
            " KERNELFARM_SIGNING=off that this farm signs nothing"
        )
    return path
