"""What the commands about the fleet's cache share: options, and the way to the farm."""

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
        help="The administrator's token. Default: KERNELFARM_TOKEN.",
    ),
]


def connect(endpoint: str | None, token: str = "") -> CacheAdmin:
    """The cache of the farm at an endpoint; None: the one of the environment."""
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
