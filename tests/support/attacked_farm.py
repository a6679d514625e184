"""A farm with two tenants: one that attacks, and its victim."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil

from kernelfarm.service.tenants.directory import Tenant, TenantDirectory
from kernelfarm.service.tenants.identity import Quota, Role
from kernelfarm.service.tenants.tokens import StoredToken, new_token
from kernelfarm.service.tenants.toml_file import write_tenants
from tests.support.farm import Farm, running_farm


class Credential(enum.Enum):
    """What the attacker shows."""

    NONE = "no token"
    EXPIRED = "expired token"
    READER = "token of a reader"
    MEMBER = "token of a member"


_WORKERS = 2
_QUOTA = Quota(max_bytes=1 << 30, max_entries=100_000)


@dataclass(frozen=True)
class Attacked:
    """A running farm, the attacker's tokens by kind, and the victim's."""

    farm: Farm
    attackers: dict[Credential, str]
    victim: str

    def rss_bytes(self) -> int:
        """Resident memory of all its processes."""
        return sum(_rss(process) for process in family(self.farm))


def family(farm: Farm) -> list[psutil.Process]:
    """The supervisor and all that descend from it."""
    try:
        parent = psutil.Process(farm.process.pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


@contextmanager
def attacked_farm(
    folder: Path, vendors: str = "cpu,cuda", **environment: str
) -> Iterator[Attacked]:
    """Starts it; what hangs at the end is killed, so that the next farm finds an idle machine."""
    tokens: dict[Credential, str] = {Credential.NONE: ""}
    kept: list[StoredToken] = []
    ended = datetime.now(UTC).replace(microsecond=0) - timedelta(days=1)
    for kind, role, end in (
        (Credential.EXPIRED, Role.MEMBER, ended),
        (Credential.READER, Role.READER, None),
        (Credential.MEMBER, Role.MEMBER, None),
    ):
        tokens[kind], stored = new_token(frozenset({role}), end)
        kept.append(stored)
    victim, stored = new_token(frozenset({Role.MEMBER}))
    path = folder / "tenants.toml"
    folder.mkdir(parents=True, exist_ok=True)
    tenants = [
        Tenant("attacker", b"\1" * 32, _QUOTA, tuple(kept)),
        Tenant("victim", b"\2" * 32, _QUOTA, (stored,)),
    ]
    write_tenants(path, TenantDirectory(tenants))
    settings = {"KERNELFARM_TENANTS_FILE": str(path), **environment}
    with running_farm(folder / "farm", vendors, frontends=1, workers=_WORKERS, **settings) as farm:
        try:
            yield Attacked(farm, tokens, victim)
        finally:
            kill_children(farm)


def kill_children(farm: Farm) -> None:
    """Ends the farm at once, the supervisor first, which would start its children again."""
    for process in family(farm):
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue


def _rss(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0
