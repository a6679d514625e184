"""The tenants file: TOML, edited by `kernelfarm tenants` or by hand.

format = 1

[shared]                          # optional: limits of the namespace that warmers fill
max_bytes = 50_000_000_000

[tenants.acme]
salt = "BASE64 of 32 bytes"       # secret; "none" means that keys are not salted
max_bytes = 10_000_000_000        # optional, like max_entries and max_compiles (in flight)

[[tenants.acme.tokens]]           # several while tokens are rotated
id = "9f2c41d07b1e"
sha256 = "HEX"                    # of the whole token
roles = ["member"]                # reader, member, warmer, administrator
not_after = 2027-01-01T00:00:00Z  # optional
note = "inference"                # optional

[[tenants.acme.certificates]]
name = "spiffe://acme/serving"
roles = ["member"]
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kernelfarm.errors import CallerError
from kernelfarm.service.tenants.directory import StoredCertificate, Tenant, TenantDirectory
from kernelfarm.service.tenants.identity import CACHE_USERS, SHARED_TENANT, Quota, Role
from kernelfarm.service.tenants.tokens import StoredToken

FORMAT = 1
SALT_BYTES = 32
NO_SALT = "none"

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_HEX_ID = re.compile(r"[0-9a-f]{12}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LIMITS = ("max_bytes", "max_entries", "max_compiles")


class _TenantsFileError(CallerError):
    """A fault in the file; the message names the table."""


def read_tenants(path: Path) -> TenantDirectory:
    """The tenants of a file.

    Raises:
        CallerError: the file cannot be read, is no TOML, or breaks a rule; the message names the
            table.
    """
    try:
        stored = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CallerError(f"cannot read the tenants in {path}: {error}") from error
    try:
        return _directory(stored)
    except _TenantsFileError as error:
        raise CallerError(f"the tenants file {path} cannot be used: {error}") from error


def check_name(name: str) -> str:
    """Returns a valid tenant name.

    Raises:
        CallerError: the name is not valid.
    """
    if not _NAME.fullmatch(name) or name == SHARED_TENANT:
        raise CallerError(
            f"tenant {name[:80]!r}; expected lower-case letters, digits and hyphens, 63 at most,"
            f" and not {SHARED_TENANT!r}"
        )
    return name


def check_tenants(directory: TenantDirectory) -> None:
    """Checks tenants before they are written to a file.

    Raises:
        CallerError: they break a rule of the file.
    """
    _directory(tomllib.loads("\n".join(_lines(directory))))


def write_tenants(path: Path, directory: TenantDirectory) -> None:
    """Replaces the file atomically, readable only by its owner; comments are lost.

    Raises:
        CallerError: the file cannot be written.
    """
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write("\n".join(_lines(directory)) + "\n")
        scratch.replace(path)
    except OSError as error:
        raise CallerError(f"cannot write the tenants to {path}: {error}") from error


def _directory(stored: dict[str, Any]) -> TenantDirectory:
    _check_fields(stored, "the file", {"format", "tenants", "shared"})
    if stored.get("format") != FORMAT:
        raise _TenantsFileError(f"format is {stored.get('format')!r}; expected {FORMAT}")
    shared = _table(stored.get("shared", {}), "[shared]")
    _check_fields(shared, "[shared]", set(_LIMITS))
    tenants = [
        _tenant(name, _table(fields, f"[tenants.{name}]"))
        for name, fields in _table(stored.get("tenants", {}), "[tenants]").items()
    ]
    _check_unique("token id", (t.token_id for tenant in tenants for t in tenant.tokens))
    _check_unique("token digest", (t.sha256 for tenant in tenants for t in tenant.tokens))
    _check_unique("certificate", (c.name for tenant in tenants for c in tenant.certificates))
    salts = (tenant.salt.hex() for tenant in tenants if tenant.salt)
    if len(set(salts)) != sum(bool(tenant.salt) for tenant in tenants):
        raise _TenantsFileError(
            "two tenants have the same salt; expected a different salt for each"
        )
    return TenantDirectory(tenants, _quota(shared, "[shared]"))


def _tenant(name: str, fields: dict[str, Any]) -> Tenant:
    where = f"[tenants.{name}]"
    try:
        check_name(name)
    except CallerError as error:
        raise _TenantsFileError(str(error)) from error
    _check_fields(fields, where, {"salt", "tokens", "certificates", *_LIMITS})
    return Tenant(
        name,
        _salt(fields.get("salt"), where),
        _quota(fields, where),
        tuple(_token(t, w) for t, w in _tables(fields, "tokens", where)),
        tuple(_certificate(c, w) for c, w in _tables(fields, "certificates", where)),
    )


def _token(fields: dict[str, Any], where: str) -> StoredToken:
    _check_fields(fields, where, {"id", "sha256", "roles", "not_after", "note"})
    not_after = fields.get("not_after")
    if not_after is not None and not (isinstance(not_after, datetime) and not_after.tzinfo):
        raise _TenantsFileError(
            f"{where}: not_after is {not_after!r}; expected a time with its zone"
        )
    return StoredToken(
        _text(fields, "id", where, _HEX_ID),
        _text(fields, "sha256", where, _SHA256),
        _roles(fields, where),
        not_after,
        str(fields.get("note", "")),
    )


def _certificate(fields: dict[str, Any], where: str) -> StoredCertificate:
    _check_fields(fields, where, {"name", "roles"})
    return StoredCertificate(
        _text(fields, "name", where, re.compile(r"[!-~]{1,253}")), _roles(fields, where)
    )


def _roles(fields: dict[str, Any], where: str) -> frozenset[Role]:
    named = fields.get("roles")
    known = {role.value: role for role in Role}
    if not isinstance(named, list) or not named or any(name not in known for name in named):
        raise _TenantsFileError(
            f"{where}: roles are {named!r}; expected some of {', '.join(known)}"
        )
    return check_roles(frozenset(known[name] for name in named), where)


def check_roles(roles: frozenset[Role], where: str) -> frozenset[Role]:
    """Returns roles that one credential may have together.

    Raises:
        CallerError: a warmer has another role that uses the cache.
    """
    if Role.WARMER in roles and len(roles.intersection(CACHE_USERS)) > 1:
        raise _TenantsFileError(
            f"{where}: a warmer uses the shared namespace only; make two credentials"
        )
    return roles


def _quota(fields: dict[str, Any], where: str) -> Quota:
    for name in _LIMITS:
        limit = fields.get(name)
        if limit is not None and (type(limit) is not int or limit <= 0):
            raise _TenantsFileError(f"{where}: {name} is {limit!r}; expected an integer above 0")
    return Quota(*(fields.get(name) for name in _LIMITS))


def _salt(stored: object, where: str) -> bytes:
    if stored == NO_SALT:
        return b""
    try:
        salt = base64.b64decode(stored, validate=True) if isinstance(stored, str) else b""
    except binascii.Error:
        salt = b""
    if len(salt) != SALT_BYTES:
        raise _TenantsFileError(
            f"{where}: the salt is invalid; expected {SALT_BYTES} bytes in base64, or {NO_SALT!r}"
        )
    return salt


def _text(fields: dict[str, Any], name: str, where: str, form: re.Pattern[str]) -> str:
    text = fields.get(name)
    if not isinstance(text, str) or not form.fullmatch(text):
        raise _TenantsFileError(f"{where}: {name} is {text!r}; expected {form.pattern}")
    return text


def _tables(fields: dict[str, Any], name: str, where: str) -> Iterator[tuple[dict[str, Any], str]]:
    listed = fields.get(name, [])
    if not isinstance(listed, list):
        raise _TenantsFileError(f"{where}: {name} is {listed!r}; expected a list of tables")
    for number, table in enumerate(listed, start=1):
        location = f"{where} {name} {number}"
        yield _table(table, location), location


def _table(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _TenantsFileError(f"{where} is {value!r}; expected a table")
    return value


def _check_fields(fields: dict[str, Any], where: str, known: set[str]) -> None:
    unknown = sorted(fields.keys() - known)
    if unknown:
        raise _TenantsFileError(
            f"{where} has {', '.join(unknown)}; expected only {', '.join(sorted(known))}"
        )


def _check_unique(what: str, values: Iterable[str]) -> None:
    twice = [value for value, count in Counter(values).items() if count > 1]
    if twice:
        raise _TenantsFileError(f"{what} {twice[0]!r} occurs twice; expected each once")


def _lines(directory: TenantDirectory) -> Iterator[str]:
    yield f"format = {FORMAT}"
    if any(limit is not None for limit in _limits(directory.shared.quota).values()):
        yield "\n[shared]"
        yield from _quota_lines(directory.shared.quota)
    for tenant in directory.tenants.values():
        yield f"\n[tenants.{tenant.name}]"
        salt = base64.b64encode(tenant.salt).decode() if tenant.salt else NO_SALT
        yield f"salt = {json.dumps(salt)}"
        yield from _quota_lines(tenant.quota)
        for token in tenant.tokens:
            yield from _token_lines(tenant.name, token)
        for certificate in tenant.certificates:
            yield f"\n[[tenants.{tenant.name}.certificates]]"
            yield f"name = {json.dumps(certificate.name)}"
            yield f"roles = {_role_list(certificate.roles)}"


def _token_lines(tenant: str, token: StoredToken) -> Iterator[str]:
    yield f"\n[[tenants.{tenant}.tokens]]"
    yield f"id = {json.dumps(token.token_id)}"
    yield f"sha256 = {json.dumps(token.sha256)}"
    yield f"roles = {_role_list(token.roles)}"
    if token.not_after is not None:
        yield f"not_after = {token.not_after.astimezone(UTC).strftime('%Y-%m-%dT%H:%M:%SZ')}"
    if token.note:
        yield f"note = {json.dumps(token.note)}"


def _quota_lines(quota: Quota) -> Iterator[str]:
    for name, limit in _limits(quota).items():
        if limit is not None:
            yield f"{name} = {limit}"


def _limits(quota: Quota) -> dict[str, int | None]:
    return {name: getattr(quota, name) for name in _LIMITS}


def _role_list(roles: frozenset[Role]) -> str:
    return json.dumps(sorted(role.value for role in roles))
