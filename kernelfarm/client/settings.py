"""The client's settings, from the environment or from code."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from kernelfarm.errors import CallerError

ENV_PREFIX = "KERNELFARM_"
Mode = Literal["wait", "strict"]


class ClientSettings(BaseSettings):
    """`KERNELFARM_ENDPOINT`, `KERNELFARM_TIMEOUT_S`, `KERNELFARM_MODE`.

    Modes: `wait` runs a graph eager if the farm cannot serve it within the time; `strict` raises.
    """

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="ignore")

    endpoint: str = "127.0.0.1:50051"
    timeout_s: float = Field(default=60.0, gt=0)
    mode: Mode = "wait"


def client_settings(**overrides: object) -> ClientSettings:
    """The settings of the environment, with what the caller states instead.

    Raises:
        CallerError: a value cannot be used; the message names it.
    """
    try:
        return ClientSettings(**overrides)  # type: ignore[arg-type] # pydantic checks the values
    except ValidationError as error:
        faults = (
            f"{ENV_PREFIX}{str(fault['loc'][0]).upper()}: {fault['msg']} (seen: {fault['input']!r})"
            for fault in error.errors()
        )
        raise CallerError(f"bad client settings: {'; '.join(faults)}") from error
