"""`kernelfarm tenants`: edits the tenants file, which defines who may call a farm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelfarm.errors import CallerError, NotFoundError

if TYPE_CHECKING:
    from kernelfarm.service.tenants.directory import Tenant
    from kernelfarm.service.tenants.identity import Role

# Each command imports the modules that read and write the file, so that `--help` stays fast.

_EPILOG = """
[bold]Examples[/bold]

  kernelfarm tenants add tenants.toml acme --max-bytes 10000000000

  kernelfarm tenants token tenants.toml acme --role reader --days 90

  kernelfarm tenants revoke tenants.toml acme 9f2c41d07b1e

  kernelfarm up --tenants tenants.toml

Running frontends read a changed file within a second. Commands remove comments from the file.
"""

TenantsPath = Annotated[Path, typer.Argument(help="The tenants file.")]
TenantName = Annotated[str, typer.Argument(help="Lower-case letters, digits and hyphens.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Default: no limit.")]
Roles = Annotated[
    list[str] | None,
    typer.Option("--role", help="reader, member, warmer or administrator; repeatable."),
]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    group = typer.Typer(help="Manages a farm's tenants, their credentials and limits.")
    for name, command in (
        ("add", add),
        ("list", list_tenants),
        ("token", token),
        ("certificate", certificate),
        ("revoke", revoke),
    ):
        group.command(name, epilog=_EPILOG)(command)
    app.add_typer(group, name="tenants", no_args_is_help=True, epilog=_EPILOG)


def add(
    path: TenantsPath,
    tenant: TenantName,
    max_bytes: Limit = None,
    max_entries: Limit = None,
    max_compiles: Limit = None,
) -> None:
    """Adds a tenant with a new salt and without tokens; creates the file if there is none."""
    import secrets  # noqa: PLC0415 -- used only here

    from kernelfarm.service.tenants import toml_file  # noqa: PLC0415 -- see above
    from kernelfarm.service.tenants.directory import Tenant, TenantDirectory  # noqa: PLC0415 -- see above
    from kernelfarm.service.tenants.identity import Quota  # noqa: PLC0415 -- see above

    known = toml_file.read_tenants(path) if path.exists() else TenantDirectory([])
    if toml_file.check_name(tenant) in known.tenants:
        raise CallerError(f"{path} already has a tenant {tenant!r}; choose another name")
    salt = secrets.token_bytes(toml_file.SALT_BYTES)
    made = Tenant(tenant, salt, Quota(max_bytes, max_entries, max_compiles))
    toml_file.write_tenants(
        path, TenantDirectory([*known.tenants.values(), made], known.shared.quota)
    )
    typer.echo(f"{tenant} added; `kernelfarm tenants token {path} {tenant}` makes a token")


def list_tenants(path: TenantsPath) -> None:
    """Lists tenants with their limits and credentials, without secrets."""
    from kernelfarm.service.tenants.toml_file import read_tenants  # noqa: PLC0415 -- see above

    for tenant in read_tenants(path).tenants.values():
        typer.echo(f"{tenant.name}: {_limits(tenant)}")
        for stored in tenant.tokens:
            end = f"until {stored.not_after:%Y-%m-%d %H:%M}" if stored.not_after else "no expiry"
            note = f" ({stored.note})" if stored.note else ""
            typer.echo(f"  token {stored.token_id}  {_names(stored.roles)}  {end}{note}")
        for known in tenant.certificates:
            typer.echo(f"  certificate {known.name}  {_names(known.roles)}")


def token(
    path: TenantsPath,
    tenant: TenantName,
    roles: Roles = None,
    days: Annotated[
        float | None, typer.Option(min=0, help="Days until the token expires. Default: never.")
    ] = None,
    note: Annotated[str, typer.Option(help="A note about the token's purpose.")] = "",
) -> None:
    """Makes a token, prints it once and stores its digest; older tokens stay valid."""
    from kernelfarm.service.tenants.tokens import new_token  # noqa: PLC0415 -- see above

    end = None if days is None else datetime.now(UTC).replace(microsecond=0) + timedelta(days=days)
    made, stored = new_token(_roles(roles), end, note)
    _change(path, tenant, lambda old: replace(old, tokens=(*old.tokens, stored)))
    typer.echo(made)


def certificate(
    path: TenantsPath,
    tenant: TenantName,
    name: Annotated[str, typer.Argument(help="A SAN (DNS or URI), or the CN if there is none.")],
    roles: Roles = None,
) -> None:
    """Accepts clients with a certificate of this name as the tenant."""
    from kernelfarm.service.tenants.directory import StoredCertificate  # noqa: PLC0415 -- see above

    stored = StoredCertificate(name, _roles(roles))
    _change(path, tenant, lambda old: replace(old, certificates=(*old.certificates, stored)))
    typer.echo(f"clients with a certificate for {name} now belong to tenant {tenant}")


def revoke(
    path: TenantsPath,
    tenant: TenantName,
    credential: Annotated[str, typer.Argument(help="A token's id, or a certificate's name.")],
) -> None:
    """Revokes a credential: frontends refuse calls with it within a second."""

    def without(old: Tenant) -> Tenant:
        tokens = tuple(stored for stored in old.tokens if stored.token_id != credential)
        certificates = tuple(stored for stored in old.certificates if stored.name != credential)
        if (tokens, certificates) == (old.tokens, old.certificates):
            raise NotFoundError(f"tenant {tenant!r} has no token or certificate {credential!r}")
        return replace(old, tokens=tokens, certificates=certificates)

    _change(path, tenant, without)
    typer.echo(f"{credential} is revoked")


def _change(path: Path, name: str, change: Callable[[Tenant], Tenant]) -> None:
    """Replaces one tenant of a file, after checking the result."""
    from kernelfarm.service.tenants import toml_file  # noqa: PLC0415 -- see above
    from kernelfarm.service.tenants.directory import TenantDirectory  # noqa: PLC0415 -- see above

    known = toml_file.read_tenants(path)
    if name not in known.tenants:
        raise NotFoundError(f"{path} has no tenant {name!r}; it has {', '.join(known.tenants)}")
    tenants = [change(t) if t.name == name else t for t in known.tenants.values()]
    changed = TenantDirectory(tenants, known.shared.quota)
    toml_file.check_tenants(changed)
    toml_file.write_tenants(path, changed)


def _roles(names: list[str] | None) -> frozenset[Role]:
    from kernelfarm.service.tenants.identity import Role  # noqa: PLC0415 -- see above

    try:
        return frozenset(Role(name) for name in names or [Role.MEMBER.value])
    except ValueError as error:
        known = ", ".join(role.value for role in Role)
        raise CallerError(f"{error}; expected some of {known}") from error


def _names(roles: frozenset[Role]) -> str:
    return "+".join(sorted(role.value for role in roles))


def _limits(tenant: Tenant) -> str:
    quota = tenant.quota
    limits = {
        "bytes": quota.max_bytes,
        "entries": quota.max_entries,
        "compiles in flight": quota.max_compiles,
    }
    stated = [f"{limit} {what}" for what, limit in limits.items() if limit is not None]
    return ", ".join(stated) or "no limits"
