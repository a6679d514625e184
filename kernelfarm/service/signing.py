"""The settings of services that sign or verify cache entries."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from kernelfarm.errors import CallerError
from kernelfarm.service.settings import ServiceSettings
from kernelfarm.signing import Keyring, Signer, Space
from kernelfarm.signing.key_files import read_keyring, read_signer


class SigningSettings(ServiceSettings):
    """Settings of the farm's signing keys."""

    signing: Literal["required", "off"] = "required"
    """With `required`, the service does not start without its keys, which `kernelfarm keys` makes.
    With `off`, the farm signs nothing."""
    program_key_file: Path | None = None
    """The frontends' private key, which signs programs."""
    kernel_key_file: Path | None = None
    """The workers' private key, which signs kernels."""
    trusted_keys_file: Path | None = None
    """The public keys that are trusted, including those of rotated keys."""
    verified_bytes: int = Field(default=32 * 1024 * 1024, ge=0)
    """The memory for verified manifests, for each key space; 0 verifies at every look-up."""

    @property
    def is_signed(self) -> bool:
        """False if the farm signs nothing."""
        return self.signing == "required"

    def signer(self, space: Space) -> Signer | None:
        """The signer of a space's manifests; None if the farm signs nothing.

        Raises:
            CallerError: the key is not set or cannot be read.
        """
        if not self.is_signed:
            return None
        is_program = space is Space.PROGRAMS
        path = self.program_key_file if is_program else self.kernel_key_file
        return read_signer(_given("PROGRAM" if is_program else "KERNEL", path), space)

    def keyring(self) -> Keyring | None:
        """The trusted public keys; None if the farm signs nothing.

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
            f"{name} is not set: make keys with `kernelfarm keys FOLDER`, or set"
            " KERNELFARM_SIGNING=off if this farm signs nothing"
        )
    return path
