"""`kernelfarm tenants` and the probes' TLS, as commands."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kernelfarm.cli import make_app
from kernelfarm.errors import CallerError, KernelfarmError, NotFoundError
from kernelfarm.service.tenants.directory import Credentials
from kernelfarm.service.tenants.identity import Quota, Role
from kernelfarm.service.tenants.tokens import token_id_of
from kernelfarm.service.tenants.toml_file import read_tenants
from tests.support.command_line import run_command
from tests.support.farm import TIMEOUT_S

NOW = datetime.now(UTC)


def run(*arguments: object) -> str:
    """The output of `kernelfarm tenants`; raises the command's error."""
    return run_command("tenants", *arguments).strip()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    run("add", tmp_path / "tenants.toml", "acme", "--max-bytes", 1000)
    return tmp_path / "tenants.toml"


def test_a_token_is_printed_once_and_lets_its_tenant_in(path: Path) -> None:
    token = run("token", path, "acme", "--role", "reader", "--days", 2, "--note", "serving")
    found = read_tenants(path).identify(Credentials(token), NOW)
    assert (found.tenant, found.roles) == ("acme", frozenset({Role.READER}))
    assert found.namespace_config.quota == Quota(max_bytes=1000)
    (stored,) = read_tenants(path).tenants["acme"].tokens
    assert stored.not_after is not None
    assert timedelta(days=1.9) < stored.not_after - NOW < timedelta(days=2.1)
    listed = run("list", path)
    assert "acme: 1000 bytes" in listed and "reader" in listed and "(serving)" in listed
    assert token not in listed + path.read_text()


def test_tokens_overlap_until_one_is_revoked(path: Path) -> None:
    old, new = run("token", path, "acme"), run("token", path, "acme")
    for token in (old, new):
        assert read_tenants(path).identify(Credentials(token), NOW).roles == frozenset(
            {Role.MEMBER}
        )
    run("revoke", path, "acme", token_id_of(old))
    with pytest.raises(KernelfarmError):
        read_tenants(path).identify(Credentials(old), NOW)
    assert read_tenants(path).identify(Credentials(new), NOW).tenant == "acme"


def test_certificates_are_added_and_revoked_by_name(path: Path) -> None:
    run("certificate", path, "acme", "spiffe://acme/serving", "--role", "warmer")
    found = read_tenants(path).identify(Credentials("", ("spiffe://acme/serving",)), NOW)
    assert found.roles == frozenset({Role.WARMER})
    assert "spiffe://acme/serving  warmer" in run("list", path)
    run("revoke", path, "acme", "spiffe://acme/serving")
    assert read_tenants(path).tenants["acme"].certificates == ()


@pytest.mark.parametrize(
    ("arguments", "kind", "why"),
    [
        (["add", "acme"], CallerError, "already has a tenant 'acme'"),
        (["add", "Acme"], CallerError, "lower-case letters"),
        (["add", "shared"], CallerError, "not 'shared'"),
        (["token", "beta"], NotFoundError, "no tenant 'beta'; it has acme"),
        (["token", "acme", "--role", "root"], CallerError, "expected some of reader, member"),
        (["token", "acme", "--role", "warmer", "--role", "member"], CallerError, "two credentials"),
        (["revoke", "acme", "0" * 12], NotFoundError, "no token or certificate"),
    ],
)
def test_what_cannot_be_done_changes_nothing(
    path: Path, arguments: Sequence[str], kind: type[Exception], why: str
) -> None:
    before = path.read_bytes()
    with pytest.raises(kind, match=why):
        run(arguments[0], path, *arguments[1:])
    assert path.read_bytes() == before


def test_a_farm_with_a_bad_tenants_file_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("format = 3")
    up = ["up", "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "farm")]
    ended = CliRunner().invoke(make_app(), [*up, "--tenants", str(tmp_path / "bad.toml")])
    assert isinstance(ended.exception, CallerError)
    assert "format is 3; expected 1" in str(ended.exception)


@pytest.mark.parametrize("command", ["frontend_svc", "optimizer_svc", "codegen_svc"])
def test_incomplete_internal_certificates_are_refused(command: str, tmp_path: Path) -> None:
    environment = {"PATH": "", "KERNELFARM_SIGNING": "off", "KERNELFARM_INTERNAL_CA_FILE": "ca.pem"}
    for service in ("FRONTEND", "OPTIMIZER", "CODEGEN"):
        environment[f"KERNELFARM_{service}_LISTEN"] = f"unix:{tmp_path}/socket"
    ended = subprocess.run(
        [sys.executable, "-m", command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == 2, ended.stderr
    assert "go together" in ended.stderr
