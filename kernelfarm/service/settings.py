"""The base of each service's settings: one frozen object, read once from the environment."""

from __future__ import annotations

from typing import Literal, TypeVar

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from kernelfarm.errors import CallerError

ENV_PREFIX = "KERNELFARM_"

# A 32-layer Llama is below 1 MB and constants travel up to 64 KiB each: room for every real graph.
DEFAULT_MAX_MESSAGE_BYTES = 64 * 1024 * 1024

SettingsT = TypeVar("SettingsT", bound="ServiceSettings")


class ServiceSettings(BaseSettings):
    """What all services read: `KERNELFARM_LOG_LEVEL`, `KERNELFARM_DRAIN_GRACE_S`, ...

    Subclass it for a service's own settings; the prefix and the frozenness are inherited.
    """

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="ignore")

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "console"] = "json"
    max_message_bytes: int = Field(default=DEFAULT_MAX_MESSAGE_BYTES, gt=0, lt=2**31)
    drain_grace_s: float = Field(default=20.0, ge=0)


def load_settings(kind: type[SettingsT]) -> SettingsT:
    """A service's settings from the environment.

    Raises:
        CallerError: a variable has a value that cannot be used; the message names each.
    """
    try:
        return kind()
    except ValidationError as error:
        faults = (
            f"{ENV_PREFIX}{'_'.join(str(part) for part in fault['loc']).upper()}: {fault['msg']}"
            f" (seen: {fault['input']!r})"
            for fault in error.errors()
        )
        raise CallerError(f"bad settings: {'; '.join(faults)}") from error
