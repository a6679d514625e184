"""Options and connection shared by the commands about the farm's cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kernelfarm.client.farm.cache_client import CacheAdmin

Endpoint = Annotated[
    str | None, typer.Option(help="The farm's HOST:PORT. Default: KERNELFARM_ENDPOINT.")
]
Token = Annotated[
    str,
    typer.Option(
        envvar="KERNELFARM_ADMIN_TOKEN",
        help="The token of an administrator. Default: KERNELFARM_TOKEN.",
    ),
]


def connect(endpoint: str | None, token: str = "") -> CacheAdmin:
    """A client for the cache of the farm at `endpoint`, or of the environment's farm if None."""
    from kernelfarm.client.farm.cache_client import CacheAdmin  # noqa: PLC0415 (keeps --help quick)
    from kernelfarm.client.settings import client_settings  # noqa: PLC0415 (keeps --help quick)

    given = {} if endpoint is None else {"endpoint": endpoint}
    settings = client_settings(**given)
    return CacheAdmin(
        settings.endpoint,
        token or settings.bearer(),
        settings.tls(),
        allow_cleartext=settings.allow_cleartext_token,
    )
