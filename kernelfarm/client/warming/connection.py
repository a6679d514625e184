"""The settings with which batch commands call a farm."""

from __future__ import annotations

from kernelfarm.client.farm.client import FarmClient
from kernelfarm.client.settings import ClientSettings, client_settings, is_in_environment
from kernelfarm.errors import UnauthenticatedError


def batch_settings(
    endpoint: str | None, timeout_s: float, token: str = ""
) -> tuple[ClientSettings, str]:
    """The settings of a job, and the version of its farm.

    A job keeps nothing on disk. Unless KERNELFARM_NAMESPACE is set, its namespace is the one in
    which the farm serves its credentials; that of a warmer is the shared one. `token` stands in for
    KERNELFARM_TOKEN if it is not empty.

    Raises:
        UnauthenticatedError: the farm needs credentials, and does not know the caller's.
        UnavailableError: no farm answers.
    """
    stated: dict[str, object] = {} if endpoint is None else {"endpoint": endpoint}
    if token:
        stated |= {"token": token, "token_file": None}
    settings = client_settings(
        **stated, timeout_s=timeout_s, mode="strict", model="", disk_cache_bytes=0
    )
    with FarmClient(settings) as client:
        farm = client.capabilities()
    if not farm.namespace:
        raise UnauthenticatedError(
            f"the farm at {settings.endpoint} needs credentials: set KERNELFARM_TOKEN, or"
            " KERNELFARM_CLIENT_CERT_FILE and _KEY_FILE"
        )
    if not is_in_environment("namespace"):
        settings = settings.changed(namespace=farm.namespace)
    return settings, farm.farm_version
