"""A server with one tenant in a process of its own: run with `-m`, and a folder.

It prints its address and the tenant's token, and ends with its standard input.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

from kernelfarm.errors import InvalidGraphError
from kernelfarm.service.collector import collect_rarely
from kernelfarm.service.inbound import connections
from kernelfarm.service.logs.logger import configure_logs
from kernelfarm.service.server import ServiceRegistration, start_server
from kernelfarm.service.settings import ServiceSettings, load_settings
from kernelfarm.service.tenants.access import AccessControl
from kernelfarm.service.tenants.authentication import Authenticator, TenantsFile
from kernelfarm.service.tenants.directory import Tenant, TenantDirectory
from kernelfarm.service.tenants.identity import Role
from kernelfarm.service.tenants.tokens import new_token
from kernelfarm.service.tenants.toml_file import write_tenants
from kernelfarm.v1 import compile_service_pb2 as pb
from kernelfarm.v1 import compile_service_pb2_grpc as pb_grpc

SERVICE = "kernelfarm.v1.CompileService"

# Idle connections end sooner than those of a farm: tests wait for their end.
connections._CHECK_INTERVAL_S = 0.1
connections._UNAUTHENTICATED_IDLE_S = 0.5


def _refuse(op: str) -> None:
    try:
        raise InvalidGraphError(f"node 0 ({op}): unknown operator; expected a known one")
    except InvalidGraphError as error:
        raise InvalidGraphError(f"the graph is refused: {error}") from error


class StubServicer(pb_grpc.CompileServiceServicer):
    """Refuses each graph with a message that quotes it, as a frontend does."""

    async def Compile(  # noqa: N802
        self, request: pb.CompileRequest, context: Any
    ) -> AsyncIterator[pb.CompileResponse]:
        node = request.graph.nodes[0]
        _refuse(node.op)
        yield pb.CompileResponse()

    async def Lookup(self, request: Any, context: Any) -> pb.LookupResponse:  # noqa: N802
        return pb.LookupResponse()

    async def GetCapabilities(  # noqa: N802
        self, request: Any, context: Any
    ) -> pb.GetCapabilitiesResponse:
        return pb.GetCapabilitiesResponse()


async def main(folder: Path) -> None:
    """Serves until the standard input ends."""
    settings = load_settings(ServiceSettings)
    configure_logs(settings, "service")
    credentials = [new_token(frozenset({Role.MEMBER})) for _ in range(2)]
    acme = Tenant("acme", b"a" * 32, tokens=(credentials[0][1],))
    beta = Tenant("beta", b"b" * 32, tokens=(credentials[1][1],))
    write_tenants(folder / "tenants.toml", TenantDirectory([acme, beta]))
    authenticator = Authenticator(TenantsFile(folder / "tenants.toml"))
    access = AccessControl(authenticator, frozenset({f"/{SERVICE}/GetCapabilities"}))
    add = partial(pb_grpc.add_CompileServiceServicer_to_server, StubServicer())
    server = await start_server(
        "127.0.0.1:0", [ServiceRegistration(SERVICE, add)], settings, access
    )
    collect_rarely()
    print(server.address, *(token for token, _ in credentials), flush=True)
    await asyncio.to_thread(os.read, sys.stdin.fileno(), 1)
    await server.drain(0)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
