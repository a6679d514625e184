"""A bare gRPC server to measure against: `python -m benchmarks.cache.echo ADDRESS BYTES`.

It uses the same `grpc.aio` as the gateway, without interceptors and messages: every call of one
method gets the same bytes.
"""

from __future__ import annotations

import asyncio
import sys

import grpc

METHOD = "/bench.Echo/Get"


async def main(address: str, size_bytes: int) -> None:
    """Serves until it is killed."""
    answer = bytes(size_bytes)

    async def get(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        return answer

    server = grpc.aio.server()
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Get": grpc.unary_unary_rpc_method_handler(get)
    }
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("bench.Echo", handlers)])
    server.add_insecure_port(address)
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
