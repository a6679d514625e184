"""A whole farm behind TLS, called by the real client: with a token, and with a certificate."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kernelfarm.client.farm.client import FarmClient
from kernelfarm.client.settings import ClientSettings
from kernelfarm.errors import (
    KernelfarmError,
    UnavailableError,
    UnknownCertificateError,
    UnknownTokenError,
)
from kernelfarm.service.channels import open_channel, translated_errors
from kernelfarm.service.probes import main as probe
from kernelfarm.service.server import Listener, start_server
from kernelfarm.service.settings import ServiceSettings
from kernelfarm.service.tenants.directory import StoredCertificate, Tenant, TenantDirectory
from kernelfarm.service.tenants.identity import Role
from kernelfarm.service.tenants.tokens import new_token
from kernelfarm.service.tenants.toml_file import write_tenants
from kernelfarm.signing.key_files import PUBLIC_KEYS
from tests.support.certificates import Authority, Pair
from tests.support.farm import TIMEOUT_S, Farm, running_farm
from tests.support.ports import reserved_port
from tests.support.small_graphs import CPU, h_graph

MEMBER = frozenset({Role.MEMBER})


@dataclass(frozen=True)
class SecureFarm:
    """A farm with a listener for tokens and one for certificates."""

    farm: Farm
    certificate_endpoint: str
    server: Pair
    servers: Authority
    clients: Authority
    token: str

    def settings(self, **changes: object) -> ClientSettings:
        """A client's settings: the CA that it trusts, and the keys that it pins."""
        stated: dict[str, object] = {
            "endpoint": self.farm.endpoint,
            "ca_file": self.servers.ca_file,
            "namespace": "default/acme",
            "trusted_keys_file": self.farm.data_dir / "keys" / PUBLIC_KEYS,
        }
        return ClientSettings(**{**stated, **changes})  # type: ignore[arg-type] # pydantic checks

    def by_certificate(self, pair: Pair) -> ClientSettings:
        """Settings of a client that shows a certificate."""
        return self.settings(
            endpoint=self.certificate_endpoint,
            client_cert_file=pair.cert_file,
            client_key_file=pair.key_file,
        )


@pytest.fixture(scope="module")
def secure_farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureFarm]:
    folder = tmp_path_factory.mktemp("tls")
    servers, clients = Authority(folder / "servers"), Authority(folder / "clients")
    server, path = servers.issue_server(), folder / "tenants.toml"
    token, stored = new_token(MEMBER)
    named = (StoredCertificate("acme.example", MEMBER),)
    write_tenants(
        path, TenantDirectory([Tenant("acme", b"a" * 32, tokens=(stored,), certificates=named)])
    )
    environment = {
        "KERNELFARM_TENANTS_FILE": str(path),
        "KERNELFARM_TLS_CERT_FILE": str(server.cert_file),
        "KERNELFARM_TLS_KEY_FILE": str(server.key_file),
        "KERNELFARM_CLIENT_CA_FILE": str(clients.ca_file),
    }
    with reserved_port() as port:
        listener = f"127.0.0.1:{port}"
        environment["KERNELFARM_FRONTEND_MTLS_LISTEN"] = listener
        with running_farm(folder / "farm", "cpu", **environment) as farm:
            yield SecureFarm(farm, listener, server, servers, clients, token)


def outcome(settings: ClientSettings, rows: int) -> str:
    with FarmClient(settings) as client:
        (found,) = client.compile(h_graph(rows, 40), [CPU])
        client.read_blobs([artifact.binary.sha256 for k in found.kernels for artifact in k])
        return found.outcome


def test_one_tenant_authenticates_by_token_and_by_certificate(secure_farm: SecureFarm) -> None:
    pair = secure_farm.clients.issue("acme.example")
    assert outcome(secure_farm.settings(token=secure_farm.token), 401) == "miss"
    assert outcome(secure_farm.by_certificate(pair), 401) == "hit"
    with FarmClient(secure_farm.settings(token=secure_farm.token)) as client:
        reported = client.capabilities()
    assert (reported.is_encrypted, reported.needs_credentials, reported.namespace) == (
        True,
        True,
        "default/acme",
    )


def test_a_token_may_be_in_a_file(secure_farm: SecureFarm, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{secure_farm.token}\n")
    assert outcome(secure_farm.settings(token_file=tmp_path / "token"), 402) == "miss"


def test_other_credentials_are_refused_with_the_reason(
    secure_farm: SecureFarm, tmp_path: Path
) -> None:
    forged = Authority(tmp_path / "forged").issue("acme.example")
    for settings, kind in (
        (secure_farm.settings(token=new_token(MEMBER)[0]), UnknownTokenError),
        (
            secure_farm.by_certificate(secure_farm.clients.issue("other.example")),
            UnknownCertificateError,
        ),
        (secure_farm.by_certificate(forged), UnavailableError),
        (secure_farm.settings(token=secure_farm.token, ca_file=forged.cert_file), UnavailableError),
        (secure_farm.settings(token=secure_farm.token, ca_file=None), UnavailableError),
    ):
        with FarmClient(settings) as client, pytest.raises(KernelfarmError) as caught:
            client.lookup(b"k" * 32)
        assert isinstance(caught.value, kind), str(caught.value)


def test_a_probe_trusts_the_servers_own_certificate(
    secure_farm: SecureFarm, capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint = secure_farm.farm.endpoint
    assert probe([endpoint, "--public-cert", str(secure_farm.server.cert_file)]) == 0
    other = secure_farm.servers.issue_server("other")
    assert probe([endpoint, "--public-cert", str(other.cert_file)]) == 1
    assert probe([endpoint, "--public"]) == 1
    assert "no service at" in capsys.readouterr().err


async def test_services_show_each_other_certificates(tmp_path: Path) -> None:
    services, others = Authority(tmp_path / "services"), Authority(tmp_path / "others")
    pair = services.issue_server()
    settings = ServiceSettings(
        internal_cert_file=pair.cert_file,
        internal_key_file=pair.key_file,
        internal_ca_file=services.ca_file,
    )
    other = others.issue_server()
    changed = {"internal_cert_file": other.cert_file, "internal_key_file": other.key_file}
    listener = Listener("127.0.0.1:0", settings.internal_server_tls())
    server = await start_server([listener], [], settings)
    try:
        for known, is_served in (
            (settings.internal_channel_tls(), True),
            (settings.model_copy(update=changed).internal_channel_tls(), False),
            (None, False),
        ):
            async with open_channel(server.address, known) as channel:
                method = "/grpc.health.v1.Health/Check"
                check: Callable[..., Awaitable[bytes]] = channel.unary_unary(method)
                if is_served:
                    assert await check(b"", timeout=TIMEOUT_S) == b"\x08\x01"
                    continue
                with pytest.raises(UnavailableError), translated_errors("the service"):
                    await check(b"", timeout=TIMEOUT_S)
    finally:
        await server.drain(0)
