"""Settings of the Ascend backend, with prefix `KERNELFARM_`."""

from __future__ import annotations

from pathlib import Path

from pydantic_settings import BaseSettings, SettingsConfigDict


class AscendSettings(BaseSettings):
    """The path of the adapter, if it is neither on PATH nor where `make setup` installs it."""

    model_config = SettingsConfigDict(env_prefix="KERNELFARM_")

    triton_adapter_opt: Path | None = None
    """Path of Triton-Ascend's `triton-adapter-opt`."""
