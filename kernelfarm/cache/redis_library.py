"""Imports redis-py without OpenTelemetry's metrics, which take 85 ms in each process.

redis-py imports them where they are installed. Our metrics do not come from it.
"""

from kernelfarm.hidden_modules import hidden

with hidden("opentelemetry"):
    import redis
    from redis import asyncio as async_redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

__all__ = ["NoBackoff", "Retry", "async_redis", "redis"]
