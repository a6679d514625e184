"""Sessions of the page: they end with time, with their token and with a log-out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from frontend_svc.page.sessions import MAX_SESSIONS, PageAccess
from kernelfarm.errors import FarmFullError, UnauthenticatedError
from kernelfarm.service.tenants.access import AccessControl
from kernelfarm.service.tenants.authentication import Authenticator, TenantsFile
from kernelfarm.service.tenants.directory import Tenant, TenantDirectory
from kernelfarm.service.tenants.identity import Quota, Role
from kernelfarm.service.tenants.tokens import new_token
from kernelfarm.service.tenants.toml_file import write_tenants

HERE = "192.0.2.1"


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Farm:
    """Access to a page of one tenant, whose token can be revoked."""

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.path = folder / "tenants.toml"
        ends = datetime.now(UTC) + timedelta(days=1)
        self.token, self.stored = new_token(frozenset({Role.READER}), ends)
        self.write((self.stored,))
        self.tenants = TenantsFile(self.path, self.clock)
        access = AccessControl(Authenticator(self.tenants))
        self.page = PageAccess(access, 60.0, self.clock)

    def write(self, tokens: tuple[object, ...]) -> None:
        write_tenants(self.path, TenantDirectory([Tenant("acme", b"s" * 32, Quota(), tokens)]))


@pytest.fixture
def farm(tmp_path: Path) -> Farm:
    return Farm(tmp_path)


def test_a_session_stands_for_its_token(farm: Farm) -> None:
    session = farm.page.log_in(farm.token, HERE)
    assert farm.token not in session
    assert farm.page.identify("", session, HERE).tenant == "acme"
    assert farm.page.identify(f"Bearer {farm.token}", "", HERE).tenant == "acme"


def test_a_session_ends_after_its_time(farm: Farm) -> None:
    session = farm.page.log_in(farm.token, HERE)
    farm.clock.now_s += 61
    with pytest.raises(UnauthenticatedError, match="log in again"):
        farm.page.identify("", session, HERE)


def test_a_session_ends_with_its_token(farm: Farm) -> None:
    session = farm.page.log_in(farm.token, HERE)
    farm.write(())
    farm.clock.now_s += 1  # the tenants file is read again
    with pytest.raises(UnauthenticatedError):
        farm.page.identify("", session, HERE)


def test_a_log_out_ends_one_session(farm: Farm) -> None:
    first, second = farm.page.log_in(farm.token, HERE), farm.page.log_in(farm.token, HERE)
    farm.page.log_out(first)
    with pytest.raises(UnauthenticatedError):
        farm.page.identify("", first, HERE)
    assert farm.page.identify("", second, HERE).tenant == "acme"


def test_an_invented_session_is_refused(farm: Farm) -> None:
    with pytest.raises(UnauthenticatedError):
        farm.page.identify("", "a" * 43, HERE)


def test_the_number_of_sessions_is_bounded(farm: Farm) -> None:
    first = farm.page.log_in(farm.token, HERE)
    sessions = [farm.page.log_in(farm.token, HERE) for _ in range(MAX_SESSIONS)]
    with pytest.raises(UnauthenticatedError):
        farm.page.identify("", first, HERE)
    assert farm.page.identify("", sessions[-1], HERE).tenant == "acme"


def test_wrong_tokens_of_one_address_are_limited(farm: Farm) -> None:
    for _ in range(5):
        with pytest.raises(UnauthenticatedError):
            farm.page.log_in("wrong", HERE)
    # Even the right one: otherwise the answer would say whether a guess was right.
    with pytest.raises(FarmFullError, match="too many wrong credentials") as refused:
        farm.page.log_in(farm.token, HERE)
    assert refused.value.retry_after_s == pytest.approx(10)
    assert farm.page.log_in(farm.token, "192.0.2.2")
    farm.clock.now_s += 10
    assert farm.page.log_in(farm.token, HERE)


def test_a_request_without_credentials_counts_as_no_guess(farm: Farm) -> None:
    for _ in range(20):
        with pytest.raises(UnauthenticatedError):
            farm.page.identify("", "", HERE)
    assert farm.page.log_in(farm.token, HERE)


def test_without_tenants_callers_of_this_machine_are_administrators() -> None:
    page = PageAccess(AccessControl(Authenticator()), 60.0)
    for address, expected in (("127.0.0.1", True), ("::1", True), (HERE, False)):
        roles = page.identify("", "", address).roles
        assert (Role.ADMINISTRATOR in roles) is expected, address
