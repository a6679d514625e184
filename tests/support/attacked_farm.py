"""A farm with two tenants: one that attacks, and its victim."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from kernelfarm.service.tenants.directory import Tenant, TenantDirectory
from kernelfarm.service.tenants.identity import Quota, Role
from kernelfarm.service.tenants.tokens import StoredToken, new_token
from kernelfarm.service.tenants.toml_file import write_tenants
from tests.support.farm import Farm, running_farm
from tests.support.processes import process_tree, rss_bytes


class Credential(enum.Enum):
    """The credential that an attacker sends."""

    NONE = "no token"
    EXPIRED = "expired token"
    READER = "token of a reader"
    MEMBER = "token of a member"


_WORKERS = 2
_QUOTA = Quota(max_bytes=1 << 30, max_entries=100_000)


@dataclass(frozen=True)
class Attacked:
    """A running farm, the attacker's tokens by kind, and the victim's token."""

    farm: Farm
    attackers: dict[Credential, str]
    victim: str

    def rss_bytes(self) -> int:
        """Resident memory of all processes of the farm."""
        return rss_bytes(process_tree(self.farm.process.pid))


@contextmanager
def attacked_farm(
    folder: Path, vendors: str = "cpu,cuda", **environment: str
) -> Iterator[Attacked]:
    """Starts the farm; SIGKILL ends it, so that no process of it slows down the next farm."""
    tokens: dict[Credential, str] = {Credential.NONE: ""}
    hashed: list[StoredToken] = []
    ended = datetime.now(UTC).replace(microsecond=0) - timedelta(days=1)
    for kind, role, end in (
        (Credential.EXPIRED, Role.MEMBER, ended),
        (Credential.READER, Role.READER, None),
        (Credential.MEMBER, Role.MEMBER, None),
    ):
        tokens[kind], stored = new_token(frozenset({role}), end)
        hashed.append(stored)
    victim, stored = new_token(frozenset({Role.MEMBER}))
    path = folder / "tenants.toml"
    folder.mkdir(parents=True, exist_ok=True)
    tenants = [
        Tenant("attacker", b"\1" * 32, _QUOTA, tuple(hashed)),
        Tenant("victim", b"\2" * 32, _QUOTA, (stored,)),
    ]
    write_tenants(path, TenantDirectory(tenants))
    settings = {"KERNELFARM_TENANTS_FILE": str(path), **environment}
    with running_farm(folder / "farm", vendors, frontends=1, workers=_WORKERS, **settings) as farm:
        yield Attacked(farm, tokens, victim)
