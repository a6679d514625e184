"""Farms that tests share: each started when the first test asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kernelfarm.service.tenants.directory import Tenant, TenantDirectory
from kernelfarm.service.tenants.identity import Quota, Role
from kernelfarm.service.tenants.tokens import new_token
from kernelfarm.service.tenants.toml_file import write_tenants
from tests.support.farm import running_farm
from tests.support.tenants_farm import TENANTS, TenantFarm


@pytest.fixture(scope="module")
def tenant_farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TenantFarm]:
    folder = tmp_path_factory.mktemp("city")
    path, tokens, tenants = folder / "tenants.toml", {}, []
    for number, name in enumerate(TENANTS):
        kept = []
        for role in Role:
            tokens[name, role], stored = new_token(frozenset({role}))
            kept.append(stored)
        tenants.append(Tenant(name, bytes([number]) * 32, Quota(), tuple(kept)))
    write_tenants(path, TenantDirectory(tenants))
    with running_farm(folder / "farm", "cpu", KERNELFARM_TENANTS_FILE=str(path)) as farm:
        yield TenantFarm(farm, path, tokens)
