"""The secure overlay: it fits the compose file and the settings, and its secrets can be used."""

from __future__ import annotations

import re
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml
from cryptography import x509

from kernelfarm.cache.embedded import ServerRole, find_server, server_command
from kernelfarm.service.tenants.directory import Credentials
from kernelfarm.service.tenants.identity import Role as CallerRole
from kernelfarm.service.tenants.toml_file import read_tenants
from kernelfarm.service.tls import ChannelTls, ServerTls, tls_to_self
from kernelfarm.signing import Space
from kernelfarm.signing.key_files import read_keyring, read_signer
from tests.support.known_variables import ROOT, VARIABLES
from tests.support.redis_process import server_process

SERVICES = ("frontend", "optimizer", "codegen", "worker")


@pytest.fixture(scope="module")
def overlay() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "deploy/compose.secure.yaml").read_text())


def test_it_sets_known_variables_of_known_services(overlay: dict[str, Any]) -> None:
    base = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())["services"]
    assert set(overlay["services"]) <= set(base)
    assert set(base) == set(overlay["services"])
    used = {n for s in overlay["services"].values() for n in s.get("environment", {})}
    assert used and used <= VARIABLES


def test_every_secret_is_declared_used_and_made(
    overlay: dict[str, Any], made: tuple[Path, str]
) -> None:
    listed = [s for service in overlay["services"].values() for s in service.get("secrets", [])]
    used = {secret if isinstance(secret, str) else secret["source"] for secret in listed}
    assert used == set(overlay["secrets"])
    files = {Path(secret["file"].partition("}/")[2]) for secret in overlay["secrets"].values()}
    assert {str(file) for file in files if not (made[0] / file).is_file()} == set()


def test_each_private_key_reaches_only_its_own_service(overlay: dict[str, Any]) -> None:
    def holders(secret: str) -> set[str]:
        return {n for n, s in overlay["services"].items() if secret in s.get("secrets", [])}

    assert holders("programs.key") == holders("public.key") == {"frontend"}
    assert holders("kernels.key") == {n for n in overlay["services"] if n.startswith("worker-")}
    assert holders("cache-users.acl") == {"cache"}
    assert holders("broker-users.acl") == {"broker"}
    assert not {"internal-ca.key", "public-ca.key"} & set(overlay["secrets"])


def test_the_secrets_can_be_used(made: tuple[Path, str]) -> None:
    folder, token = made
    for service in SERVICES:
        ca, pair = (
            folder / "internal-ca.pem",
            (folder / f"{service}.pem", folder / f"{service}.key"),
        )
        ServerTls(*pair, ca).credentials()
        ChannelTls(ca, *pair).credentials()
        names = x509.load_pem_x509_certificate(pair[0].read_bytes()).extensions
        san = names.get_extension_for_class(x509.SubjectAlternativeName).value
        # As Compose and the chart name the service, and as its own probes do.
        expected = {service, f"kf-kernelfarm-{service}", "localhost"}
        assert set(san.get_values_for_type(x509.DNSName)) == expected
    assert tls_to_self(folder / "public.pem").server_name == "farm.example"
    for space in Space:
        read_signer(folder / f"{space.name.lower()}.key", space)
    assert {key.space for key in read_keyring(folder / "public.json").keys} == set(Space)
    known = read_tenants(folder / "tenants/tenants.toml")
    caller = known.identify(Credentials(token), datetime.now(UTC))
    assert caller.roles == frozenset({CallerRole.ADMINISTRATOR})
    readable = [p for p in folder.rglob("*") if p.is_file() and p.stat().st_mode & 0o077]
    assert [p.name for p in readable if p.suffix in (".key", ".env", ".acl", ".toml")] == []


def test_every_server_asks_for_a_user_and_every_url_names_one(overlay: dict[str, Any]) -> None:
    for server in ("broker", "cache"):
        flags = overlay["services"][server]["command"][1:]
        stated = dict(zip(flags[::2], flags[1::2], strict=True))
        assert stated["--aclfile"] == f"/run/secrets/{server}-users.acl"
        base = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())["services"]
        plain = base[server]["command"]
        assert "--protected-mode" not in stated and stated["--maxmemory-policy"] in plain
    urls = {
        (name, variable): value
        for name, service in overlay["services"].items()
        for variable, value in service.get("environment", {}).items()
        if variable.endswith("_URL")
    }
    assert all(re.match(r"redis://\w+:\$\{\w+_PASSWORD:\?", url) for url in urls.values()), urls
    brokers = {name: url for (name, v), url in urls.items() if v == "KERNELFARM_BROKER_URL"}
    workers = {name for name in overlay["services"] if name.startswith("worker-")}
    assert {name for name, url in brokers.items() if "//consumer:" in url} == workers
    assert {name for name, url in brokers.items() if "//producer:" in url} == {"codegen"}


@pytest.mark.parametrize(
    ("server", "role"), [("cache", ServerRole.CACHE), ("broker", ServerRole.BROKER)]
)
def test_the_users_of_a_server_have_the_passwords(
    server: str, role: ServerRole, made: tuple[Path, str], tmp_path: Path
) -> None:
    folder, _ = made
    users = folder / f"{server}-users.acl"
    assert "SHA256" not in users.read_text()
    named = set(re.findall(r"^user (\w+) on", users.read_text(), re.MULTILINE))
    passwords = dict(
        re.findall(r"KERNELFARM_(\w+)_PASSWORD=(\w+)", (folder / "passwords.env").read_text())
    )
    assert named <= {user.lower() for user in passwords}
    command = server_command(find_server(), role, tmp_path, tmp_path / "s", 0)
    flags = ("--aclfile", str(users))
    is_up = lambda: _listens(tmp_path / "s")  # noqa: E731
    with server_process([*command, *flags], tmp_path / "log", is_up):
        for user in sorted(named):
            with redis.Redis(
                unix_socket_path=str(tmp_path / "s"),
                username=user,
                password=passwords[user.upper()],
            ) as raw:
                assert raw.ping()


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0
