"""kombu's transport for Redis, whose connections do not report the name of their library.

redis-py sends `CLIENT SETINFO` on each new connection. Users of a secure broker may not run CLIENT
commands: redis-py ignores the refusal, but the server records it like an intrusion. Operators watch
that record (`ACL LOG`), so it must stay empty while the farm does its work.
"""

from __future__ import annotations

from typing import Any

from kombu.transport import TRANSPORT_ALIASES
from kombu.transport import redis as kombu_redis


class BrokerChannel(kombu_redis.Channel):
    """A channel whose connections send no `CLIENT SETINFO`."""

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        # A private method, because kombu has no option for it; test_secure_broker.py fails without.
        options = super()._connparams(asynchronous)  # type: ignore[no-untyped-call] # kombu's
        return {**options, "driver_info": None}


class BrokerTransport(kombu_redis.Transport):
    """The transport of all connections of a farm to its broker."""

    Channel = BrokerChannel


def use_broker_transport() -> None:
    """Makes kombu use this transport for Redis, in this process."""
    for scheme in ("redis", "rediss"):
        TRANSPORT_ALIASES[scheme] = f"{__name__}:{BrokerTransport.__name__}"
