"""Tokens, certificates and TLS over real sockets: accepted and refused callers."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kernelfarm.errors import (
    CallerError,
    ExpiredTokenError,
    KernelfarmError,
    UnauthenticatedError,
    UnavailableError,
    UnknownCertificateError,
    UnknownTokenError,
)
from kernelfarm.service.channels import open_blocking_channel, open_channel, translated_errors
from kernelfarm.service.server import Listener, RunningServer, ServiceRegistration, start_server
from kernelfarm.service.settings import ServiceSettings
from kernelfarm.service.tenants.access import AccessControl
from kernelfarm.service.tenants.authentication import Authenticator, TenantsFile
from kernelfarm.service.tenants.directory import StoredCertificate, Tenant, TenantDirectory
from kernelfarm.service.tenants.identity import Role, current_identity
from kernelfarm.service.tenants.tokens import new_token
from kernelfarm.service.tenants.toml_file import write_tenants
from kernelfarm.service.tls import ChannelTls, ServerTls
from kernelfarm.v1 import compile_service_pb2 as pb
from kernelfarm.v1 import compile_service_pb2_grpc as pb_grpc
from tests.support.certificates import Authority, Pair
from tests.support.farm import TIMEOUT_S

SERVICE = "kernelfarm.v1.CompileService"
MEMBER = frozenset({Role.MEMBER})


class StubServicer(pb_grpc.CompileServiceServicer):
    """Returns the name of the caller."""

    async def Compile(  # noqa: N802
        self, request: Any, context: Any
    ) -> AsyncIterator[pb.CompileResponse]:
        yield pb.CompileResponse()

    async def Lookup(  # noqa: N802
        self, request: Any, context: Any
    ) -> pb.LookupResponse:
        return pb.LookupResponse()

    async def GetCapabilities(  # noqa: N802
        self, request: Any, context: Any
    ) -> pb.GetCapabilitiesResponse:
        return pb.GetCapabilitiesResponse(namespace=current_identity().tenant)

    async def ReadBlobs(  # noqa: N802
        self, request: Any, context: Any
    ) -> AsyncIterator[pb.ReadBlobsResponse]:
        yield pb.ReadBlobsResponse(data=current_identity().tenant.encode())


class TenantSetup:
    """Tenants, their credentials, a CA for servers and one for clients."""

    def __init__(self, folder: Path) -> None:
        self.servers = Authority(folder / "servers", "servers' CA")
        self.clients = Authority(folder / "clients", "clients' CA")
        self.server = self.servers.issue_server()
        self.token, stored = new_token(MEMBER)
        self.path = folder / "tenants.toml"
        named = tuple(StoredCertificate(n, MEMBER) for n in ("acme.example", "spiffe://acme/x"))
        acme = Tenant("acme", b"a" * 32, tokens=(stored,), certificates=named)
        write_tenants(self.path, TenantDirectory([acme]))
        authenticator = Authenticator(TenantsFile(self.path))
        self.access = AccessControl(authenticator, frozenset({f"/{SERVICE}/GetCapabilities"}))

    def tls(self, *, wants_certificates: bool = False) -> ServerTls:
        ca_file = self.clients.ca_file if wants_certificates else None
        return ServerTls(self.server.cert_file, self.server.key_file, ca_file)

    def channel_tls(self, pair: Pair | None = None) -> ChannelTls:
        files = (None, None) if pair is None else (pair.cert_file, pair.key_file)
        return ChannelTls(self.servers.ca_file, *files)


@pytest.fixture
def setup(tmp_path: Path) -> TenantSetup:
    return TenantSetup(tmp_path)


@asynccontextmanager
async def serving(house: TenantSetup, *tls: ServerTls | None) -> AsyncIterator[RunningServer]:
    add = partial(pb_grpc.add_CompileServiceServicer_to_server, StubServicer())
    listeners = [Listener("127.0.0.1:0", each) for each in tls]
    server = await start_server(
        listeners, [ServiceRegistration(SERVICE, add)], ServiceSettings(), house.access
    )
    try:
        yield server
    finally:
        await server.drain(0)


async def tenant_at(address: str, tls: ChannelTls | None = None, token: str = "") -> str:
    """The caller that the handler of a streaming call sees."""
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    async with open_channel(address, tls) as channel:
        stub = pb_grpc.CompileServiceStub(channel)
        with translated_errors("the farm"):
            call = stub.ReadBlobs(pb.ReadBlobsRequest(), metadata=metadata, timeout=TIMEOUT_S)
            (chunk,) = [chunk async for chunk in call]
            return chunk.data.decode()


async def refusal_at(*args: Any, **keywords: Any) -> KernelfarmError:
    with pytest.raises(KernelfarmError) as caught:
        await tenant_at(*args, **keywords)
    return caught.value


async def test_a_token_identifies_its_tenant_and_other_tokens_are_refused_with_the_reason(
    setup: TenantSetup,
) -> None:
    async with serving(setup, None) as server:
        assert await tenant_at(server.address, token=setup.token) == "acme"
        missing = await refusal_at(server.address)
        wrong = await refusal_at(server.address, token=new_token(MEMBER)[0])
    assert (type(missing), type(wrong)) == (UnauthenticatedError, UnknownTokenError)
    assert "KERNELFARM_TOKEN" in str(missing)
    assert setup.access.refusals.drain() == {
        ("", "CREDENTIALS_MISSING"): 1,
        ("", "TOKEN_UNKNOWN"): 1,
    }


async def test_health_and_capabilities_accept_no_credentials_but_refuse_wrong_ones(
    setup: TenantSetup,
) -> None:
    async with serving(setup, None) as server, open_channel(server.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        reported = await health.Check(health_pb2.HealthCheckRequest(service=SERVICE))
        assert reported.status == health_pb2.HealthCheckResponse.SERVING
        stub = pb_grpc.CompileServiceStub(channel)
        assert (await stub.GetCapabilities(pb.GetCapabilitiesRequest())).namespace == ""
        mine = (("authorization", f"Bearer {setup.token}"),)
        known = await stub.GetCapabilities(pb.GetCapabilitiesRequest(), metadata=mine)
        assert known.namespace == "acme"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            bad = (("authorization", "Bearer kft_x"),)
            await stub.GetCapabilities(pb.GetCapabilitiesRequest(), metadata=bad)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("header", ["Basic abc", "Bearer", "kft_1"])
async def test_a_header_of_another_form_is_refused(setup: TenantSetup, header: str) -> None:
    async with serving(setup, None) as server, open_channel(server.address) as channel:
        stub = pb_grpc.CompileServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError, match="as `Bearer TOKEN`"):
            async for _ in stub.ReadBlobs(
                pb.ReadBlobsRequest(), metadata=(("authorization", header),)
            ):
                pass


async def test_an_expired_and_a_revoked_token_end_without_a_restart(setup: TenantSetup) -> None:
    ended, kept = new_token(MEMBER, datetime(2020, 1, 1, tzinfo=UTC))
    now_s = [0.0]
    authenticator = Authenticator(TenantsFile(setup.path, clock=lambda: now_s[0]))
    setup.access = AccessControl(authenticator)
    async with serving(setup, None) as server:
        assert await tenant_at(server.address, token=setup.token) == "acme"
        write_tenants(setup.path, TenantDirectory([Tenant("acme", b"a" * 32, tokens=(kept,))]))
        now_s[0] = 1
        revoked = await refusal_at(server.address, token=setup.token)
        expired = await refusal_at(server.address, token=ended)
    assert (type(revoked), type(expired)) == (UnknownTokenError, ExpiredTokenError)


async def test_one_listener_takes_tokens_and_another_certificates(setup: TenantSetup) -> None:
    pair = setup.clients.issue("acme.example")
    uri = (x509.UniformResourceIdentifier("spiffe://acme/x"),)
    named = setup.clients.issue("anything", sans=uri)
    async with serving(setup, setup.tls(), setup.tls(wants_certificates=True)) as server:
        by_token, by_certificate = server.addresses
        assert await tenant_at(by_token, setup.channel_tls(), setup.token) == "acme"
        for known in (pair, named):
            assert await tenant_at(by_certificate, setup.channel_tls(known)) == "acme"


async def test_a_certificate_of_an_unknown_tenant_is_refused_with_the_reason(
    setup: TenantSetup,
) -> None:
    unknown = setup.clients.issue("unknown.example")
    # The name is in the subject alone: where there are SANs, they count.
    sneaky = setup.clients.issue("acme.example", sans=(x509.DNSName("unknown.example"),))
    async with serving(setup, setup.tls(wants_certificates=True)) as server:
        for pair in (unknown, sneaky):
            error = await refusal_at(server.address, setup.channel_tls(pair))
            assert type(error) is UnknownCertificateError
            assert "unknown.example" in str(error)
    assert setup.access.refusals.drain() == {("", "CERTIFICATE_UNKNOWN"): 2}


async def test_a_forged_certificate_and_none_at_all_do_not_connect(
    setup: TenantSetup, tmp_path: Path
) -> None:
    forged = Authority(tmp_path / "forger", "clients' CA").issue("acme.example")
    async with serving(setup, setup.tls(wants_certificates=True)) as server:
        for pair in (forged, None):
            error = await refusal_at(server.address, setup.channel_tls(pair))
            assert isinstance(error, UnavailableError)
    assert setup.access.refusals.drain() == {}


async def test_a_client_refuses_a_server_that_its_ca_did_not_sign(
    setup: TenantSetup, tmp_path: Path
) -> None:
    other = ChannelTls(Authority(tmp_path / "other").ca_file)
    async with serving(setup, setup.tls()) as server:
        error = await refusal_at(server.address, other, setup.token)
        assert isinstance(error, UnavailableError)
        unencrypted = await refusal_at(server.address, None, setup.token)
        assert isinstance(unencrypted, UnavailableError)


async def test_a_renewed_server_certificate_is_taken_without_a_restart(setup: TenantSetup) -> None:
    async with serving(setup, setup.tls()) as server:
        assert await tenant_at(server.address, setup.channel_tls(), setup.token) == "acme"
        host, _, port = server.address.rpartition(":")
        before = await _certificate_at(host, int(port))
        setup.servers.issue_server()
        assert await _certificate_at(host, int(port)) != before
        assert await tenant_at(server.address, setup.channel_tls(), setup.token) == "acme"


async def _certificate_at(host: str, port: int) -> str:
    return await asyncio.to_thread(ssl.get_server_certificate, (host, port))


def test_files_that_are_no_certificates_are_refused_by_name(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("no certificate")
    with pytest.raises(CallerError, match="holds no PEM"):
        ServerTls(text, text).credentials()
    with pytest.raises(CallerError, match="cannot read"):
        ServerTls(tmp_path / "none", text).credentials()
    with pytest.raises(CallerError, match="set both files or none"):
        ChannelTls(cert_file=text).credentials()


def test_a_token_is_not_sent_unencrypted_to_another_machine() -> None:
    with pytest.raises(CallerError, match="KERNELFARM_CA_FILE"):
        open_blocking_channel("farm.example:50051", None, "kft_token")
    open_blocking_channel("farm.example:50051", None, "kft_token", may_be_clear=True).close()
    open_blocking_channel("127.0.0.1:50051", None, "kft_token").close()
    open_blocking_channel("farm.example:50051").close()


async def test_a_blocking_channel_sends_its_token_with_every_kind_of_call(
    setup: TenantSetup,
) -> None:
    def call(address: str) -> tuple[str, str]:
        with open_blocking_channel(address, setup.channel_tls(), setup.token) as channel:
            stub = pb_grpc.CompileServiceStub(channel)
            unary = stub.GetCapabilities(pb.GetCapabilitiesRequest(), timeout=TIMEOUT_S).namespace
            (streamed,) = stub.ReadBlobs(pb.ReadBlobsRequest(), timeout=TIMEOUT_S)
        return unary, streamed.data.decode()

    async with serving(setup, setup.tls()) as server:
        assert await asyncio.to_thread(call, server.address) == ("acme", "acme")
