"""The tenants file: its content, what is refused and why, and changes of the file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kernelfarm.errors import (
    CallerError,
    CredentialsDisagreeError,
    ExpiredTokenError,
    OtherTenantError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnknownCertificateError,
    UnknownTokenError,
)
from kernelfarm.service.tenants.authentication import Authenticator, TenantsFile
from kernelfarm.service.tenants.directory import (
    Credentials,
    StoredCertificate,
    Tenant,
    TenantDirectory,
)
from kernelfarm.service.tenants.identity import Quota, Role
from kernelfarm.service.tenants.tokens import StoredToken, new_token
from kernelfarm.service.tenants.toml_file import read_tenants, write_tenants

NOW = datetime(2027, 1, 1, tzinfo=UTC)
MEMBER = frozenset({Role.MEMBER})
SALT = f'salt = "{"A" * 43}="'
TOKEN = f'[[tenants.acme.tokens]]\nid = "{"0" * 12}"\nsha256 = "{"0" * 64}"\nroles = ["member"]'


def tenant(name: str, *tokens: StoredToken, **changes: object) -> Tenant:
    made = Tenant(name, name.encode().ljust(32), Quota(), tokens)
    return replace(made, **changes)  # type: ignore[arg-type] # the tests know the fields


def test_a_written_file_is_read_back(tmp_path: Path) -> None:
    _, first = new_token(MEMBER, NOW, 'a "note"')
    _, second = new_token(frozenset({Role.READER, Role.ADMINISTRATOR}))
    acme = tenant(
        "acme",
        first,
        second,
        quota=Quota(10, None, 3),
        certificates=(StoredCertificate("spiffe://acme/x", MEMBER),),
    )
    path = tmp_path / "tenants.toml"
    write_tenants(path, TenantDirectory([acme, tenant("open", salt=b"")], Quota(max_entries=7)))
    assert path.stat().st_mode & 0o777 == 0o600
    known = read_tenants(path)
    assert dict(known.tenants) == {"acme": acme, "open": tenant("open", salt=b"")}
    assert known.shared.quota == Quota(max_entries=7)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "format is None; expected 1"),
        ("format = 2", "format is 2"),
        ("format = 1\nformt = 1", "has formt"),
        ("format 1", "cannot read"),
        ("format = 1\n[tenants.Acme]\n" + SALT, "tenant 'Acme'"),
        ("format = 1\n[tenants.shared]\n" + SALT, "not 'shared'"),
        ("format = 1\n[tenants.acme]", "the salt is invalid; expected 32 bytes"),
        ('format = 1\n[tenants.acme]\nsalt = "c2hvcnQ="', "the salt is invalid; expected 32 bytes"),
        (f"format = 1\n[tenants.acme]\n{SALT}\nmax_bytes = 0", "max_bytes is 0"),
        (f"format = 1\n[tenants.acme]\n{SALT}\nmax_compiles = true", "max_compiles is True"),
        (f"format = 1\n[tenants.acme]\n{SALT}\nmax_byte = 1", "has max_byte"),
        (f"format = 1\n[tenants.a]\n{SALT}\n[tenants.b]\n{SALT}", "two tenants have the same salt"),
        (f"format = 1\n[tenants.acme]\n{SALT}\n{TOKEN}\n{TOKEN}", "'000000000000' occurs twice"),
        (
            f"format = 1\n[tenants.acme]\n{SALT}\n{TOKEN}".replace("member", "root"),
            r"tokens 1: roles are \['root'\]; expected some of reader, member",
        ),
        (
            f"format = 1\n[tenants.acme]\n{SALT}\n{TOKEN}".replace(
                '"member"', '"member", "warmer"'
            ),
            "a warmer uses the shared namespace only",
        ),
        (
            f"format = 1\n[tenants.acme]\n{SALT}\n{TOKEN}\nnot_after = 2027-01-01T00:00:00",
            "expected a time with its zone",
        ),
        (
            f"format = 1\n[tenants.acme]\n{SALT}\n{TOKEN.replace('0' * 64, 'plain token')}",
            "sha256 is 'plain token'",
        ),
    ],
)
def test_a_file_that_breaks_a_rule_is_refused_and_the_message_names_the_table(
    tmp_path: Path, text: str, why: str
) -> None:
    path = tmp_path / "tenants.toml"
    path.write_text(text)
    with pytest.raises(CallerError, match=why):
        read_tenants(path)


def test_a_token_is_valid_until_its_expiry_and_beside_its_successor() -> None:
    old_token, old = new_token(MEMBER, NOW)
    new, kept = new_token(MEMBER)
    directory = TenantDirectory([tenant("acme", old, kept)])
    before = NOW - timedelta(seconds=1)
    for token in (old_token, new):
        assert directory.identify(Credentials(token), before).tenant == "acme"
    with pytest.raises(ExpiredTokenError, match="expired at 2027-01-01"):
        directory.identify(Credentials(old_token), NOW)
    assert directory.identify(Credentials(new), NOW).credential == f"token {kept.token_id}"


def test_a_file_contains_no_token(tmp_path: Path) -> None:
    token, stored = new_token(MEMBER)
    write_tenants(tmp_path / "t", TenantDirectory([tenant("acme", stored)]))
    assert token.split("_", 2)[2] not in (tmp_path / "t").read_text()
    assert token not in repr(stored)


def test_missing_or_wrong_credentials_are_refused_with_what_is_expected() -> None:
    token, stored = new_token(MEMBER)
    directory = TenantDirectory([tenant("acme", stored)])
    with pytest.raises(UnauthenticatedError, match="authorization: Bearer TOKEN"):
        directory.identify(Credentials(), NOW)
    near = token[:-1] + ("A" if token[-1] != "A" else "B")
    for wrong in (near, "kft_", "", "x" * 1000, new_token(MEMBER)[0]):
        if wrong:
            with pytest.raises(UnknownTokenError, match="belongs to no tenant"):
                directory.identify(Credentials(wrong), NOW)


def test_certificates_name_tenants_and_must_agree_with_tokens() -> None:
    token, stored = new_token(MEMBER)
    names = (StoredCertificate("a.example", MEMBER), StoredCertificate("b.example", MEMBER))
    acme = tenant("acme", certificates=(names[0],))
    directory = TenantDirectory([acme, tenant("beta", stored, certificates=(names[1],))])
    found = directory.identify(Credentials("", ("other.example", "a.example")), NOW)
    assert (found.tenant, found.namespace_config.salt) == ("acme", acme.salt)
    with pytest.raises(UnknownCertificateError, match="belong to no tenant"):
        directory.identify(Credentials("", ("c.example",)), NOW)
    with pytest.raises(UnknownCertificateError, match="belong to several tenants"):
        directory.identify(Credentials("", ("a.example", "b.example")), NOW)
    with pytest.raises(CredentialsDisagreeError, match="expected one tenant"):
        directory.identify(Credentials(token, ("a.example",)), NOW)
    assert directory.identify(Credentials(token, ("b.example",)), NOW).tenant == "beta"


def test_a_warmer_uses_the_shared_namespace_and_others_their_own() -> None:
    warming, kept = new_token(frozenset({Role.WARMER}))
    directory = TenantDirectory([tenant("acme", kept)], Quota(max_bytes=5))
    warmer = directory.identify(Credentials(warming), NOW)
    assert (warmer.tenant, warmer.namespace_config.tenant) == ("acme", "shared")
    assert (warmer.namespace_config.salt, warmer.namespace_config.quota) == (
        b"",
        Quota(max_bytes=5),
    )


def test_a_refusal_names_the_missing_role() -> None:
    token, stored = new_token(frozenset({Role.READER}))
    reader = TenantDirectory([tenant("acme", stored)]).identify(Credentials(token), NOW)
    reader.require(Role.READER, Role.MEMBER)
    with pytest.raises(PermissionDeniedError, match="role administrator; tenant 'acme' has reader"):
        reader.require(Role.ADMINISTRATOR)
    with pytest.raises(OtherTenantError, match="of tenant 'beta'"):
        reader.require_tenant("beta")


def test_a_changed_file_takes_effect_unless_it_is_invalid(tmp_path: Path) -> None:
    path, now_s = tmp_path / "t", [0.0]
    write_tenants(path, TenantDirectory([tenant("acme")]))
    file = TenantsFile(path, clock=lambda: now_s[0])
    write_tenants(path, TenantDirectory([tenant("acme"), tenant("beta")]))
    assert set(file.current().tenants) == {"acme"}
    now_s[0] = 1
    assert set(file.current().tenants) == {"acme", "beta"}
    path.write_text("format = 1\n[tenants.acme]")
    now_s[0] = 2
    assert set(file.current().tenants) == {"acme", "beta"}
    os.unlink(path)
    now_s[0] = 3
    assert set(file.current().tenants) == {"acme", "beta"}
    assert file.failed_reloads == 2
    write_tenants(path, TenantDirectory([tenant("beta")]))
    now_s[0] = 4
    assert set(file.current().tenants) == {"beta"}


def test_tenants_and_an_administrators_token_exclude_each_other(tmp_path: Path) -> None:
    write_tenants(tmp_path / "t", TenantDirectory([]))
    with pytest.raises(CallerError, match="role administrator instead"):
        Authenticator(TenantsFile(tmp_path / "t"), "secret")


@dataclass(frozen=True)
class InTheClear:
    """A connection without TLS."""

    address: str

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        return {}

    def peer(self) -> str:
        return self.address


def test_without_tenants_the_token_or_a_local_address_makes_administrators() -> None:
    secret = Authenticator(admin_token="secret")
    near, far = InTheClear("ipv4:127.0.0.1:5"), InTheClear("ipv4:10.1.2.3:5")
    for metadata in ([], [("authorization", "Bearer wrong")]):
        with pytest.raises(PermissionDeniedError, match="administrator's token"):
            secret.identify(metadata, near).require(Role.ADMINISTRATOR)
    held = secret.identify([("authorization", "Bearer secret")], far)
    held.require(Role.ADMINISTRATOR)
    for peer in ("unix:", "ipv4:127.0.0.1:5", "ipv6:%5B::1%5D:5"):
        Authenticator().identify([], InTheClear(peer)).require(Role.ADMINISTRATOR)
    remote = Authenticator().identify([], far)
    remote.require(Role.MEMBER)
    with pytest.raises(PermissionDeniedError, match="KERNELFARM_ADMIN_TOKEN"):
        remote.require(Role.ADMINISTRATOR)
