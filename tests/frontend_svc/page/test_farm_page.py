"""The page of a running farm with tenants: who sees what, log-in, bounds, and a real browser."""

from __future__ import annotations

import http.client
import json
import urllib.parse
from dataclasses import dataclass

import pytest
from selenium.webdriver.common.keys import Keys

from kernelfarm.errors import KernelfarmError
from kernelfarm.service.tenants.identity import Role
from tests.support.browser import PHONE, Browser
from tests.support.farm import TIMEOUT_S, wait_until
from tests.support.small_graphs import h_request
from tests.support.tenants_farm import TenantFarm


@dataclass(frozen=True)
class Answer:
    status: int
    headers: http.client.HTTPMessage
    text: str


@dataclass(frozen=True)
class Page:
    """The page's address, and requests with a tenant's token."""

    port: int
    farm: TenantFarm

    @property
    def url(self) -> str:
        return f"http://localhost:{self.port}/"

    def get(
        self,
        path: str = "/",
        tenant: str = "",
        role: Role = Role.READER,
        source: str = "127.0.0.1",
        **headers: str,
    ) -> Answer:
        if tenant:
            headers["Authorization"] = f"Bearer {self.farm.tokens[tenant, role]}"
        return self.request("GET", path, source=source, **headers)

    def request(
        self, method: str, path: str, body: str = "", source: str = "127.0.0.1", **headers: str
    ) -> Answer:
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.port, timeout=TIMEOUT_S, source_address=(source, 0)
        )
        try:
            connection.request(method, path, body, {"Connection": "close", **headers})
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read().decode())
        finally:
            connection.close()

    def log_in(self, token: str, source: str = "127.0.0.1") -> Answer:
        form = urllib.parse.urlencode({"token": token})
        return self.request("POST", "/login", form, source)


@pytest.fixture(scope="module")
def page(tenant_farm: TenantFarm) -> Page:
    lines = map(json.loads, filter(is_json, tenant_farm.farm.log("frontend").splitlines()))
    (address,) = (line["address"] for line in lines if line["event"] == "page_listening")
    return Page(int(address.rpartition(":")[2]), tenant_farm)


def is_json(line: str) -> bool:
    return line.startswith("{")


@pytest.fixture(scope="module")
def key(tenant_farm: TenantFarm) -> str:
    """The key of a program that only `acme` has compiled."""
    return tenant_farm.caller("acme").compile(h_request(17, 33)).key.hex()


def test_without_credentials_there_is_a_form_and_nothing_else(page: Page, key: str) -> None:
    for path in ("/", f"/programs/{key}"):
        answer = page.get(path, Accept="text/html")
        assert answer.status == 401
        assert 'name="token"' in answer.text and key not in answer.text
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["X-Frame-Options"] == "DENY"
        policy = answer.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'none'; style-src 'sha256-")
        assert "form-action 'self'; frame-ancestors 'none'" in policy
    assert page.get().headers["WWW-Authenticate"] == "Bearer"


def test_a_tenant_sees_its_own_programs_only(page: Page, key: str) -> None:
    assert key in page.get("/", "acme").text
    for path in ("/", "/?tenant=beta", "/?first=50"):
        assert key not in page.get(path, "beta").text
    assert page.get(f"/programs/{key}", "beta").status == 404
    for path in ("/?tenant=acme", f"/programs/{key}?tenant=acme"):
        answer = page.get(path, "beta")
        assert answer.status == 403 and key not in answer.text


def test_the_page_of_a_program_is_that_of_the_command_line(page: Page, key: str) -> None:
    answer = page.get(f"/programs/{key}", "acme")
    assert answer.status == 200
    assert key in answer.text
    assert "hit in the store" in answer.text
    assert 'data-prefix="p0"' in answer.text
    assert "form-action 'self'; frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]


def test_the_administrator_sees_every_tenant_with_queues_and_workers(page: Page, key: str) -> None:
    administrator = Role.ADMINISTRATOR
    answer = page.get("/?tenant=acme", "beta", administrator)
    assert key in answer.text
    assert page.get(f"/programs/{key}?tenant=acme", "beta", administrator).status == 200
    assert page.get("/?tenant=nobody", "beta", administrator).status == 404

    def shows_queues() -> bool:
        text = page.get("/", "beta", administrator, source="127.0.0.6").text
        return 'id="queues"' in text and '<th scope="row">cpu</th><td>' in text

    wait_until(shows_queues, TIMEOUT_S, "the edge's report")
    assert "cpu@" in page.get("/", "beta", administrator).text
    assert 'id="queues"' not in page.get("/", "acme").text


def test_a_failure_is_shown_to_its_tenant_alone(page: Page) -> None:
    request = h_request(19, 21)
    request.graph.nodes[2].types[0].shape[0].constant = 5  # not the shape of the sum
    with pytest.raises(KernelfarmError) as refused:
        page.farm.caller("acme").compile(request)
    assert refused.value.reason in page.get("/", "acme").text
    assert "The farm remembers no failure" in page.get("/", "beta").text


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/programs/zz", 400),
        (f"/programs/{'0' * 64}", 404),
        ("/?first=-1", 400),
        ("/?first=9999999", 400),
        ("/?tenant=..%2F", 400),
        ("/nothing", 404),
        ("/%3Cscript%3E", 404),
        ("/favicon.ico", 204),
    ],
)
def test_wrong_addresses_are_refused(page: Page, path: str, status: int) -> None:
    answer = page.get(path, "acme")
    assert answer.status == status
    assert "<script>" not in answer.text


def test_other_methods_other_hosts_and_foreign_forms_are_refused(page: Page) -> None:
    assert page.request("PUT", "/").status in (404, 405)
    assert page.request("DELETE", "/programs/x").status in (404, 405)
    assert page.get("/", "acme", Host="rebound.example").status == 400
    token = page.farm.tokens["acme", Role.READER]
    foreign = page.request("POST", "/login", f"token={token}", Origin="https://evil.example")
    assert foreign.status == 400 and "Set-Cookie" not in foreign.headers


def test_a_session_cookie_is_for_this_site_and_not_for_scripts(page: Page, key: str) -> None:
    answer = page.log_in(page.farm.tokens["acme", Role.READER])
    assert answer.status == 303
    cookie = answer.headers["Set-Cookie"]
    for part in ("HttpOnly", "SameSite=strict", "Path=/", "Max-Age=900"):
        assert part in cookie
    name = cookie.partition(";")[0]
    assert key in page.get(Cookie=name).text
    assert page.request("POST", "/logout", Cookie=name).status == 303
    assert page.get(Cookie=name).status == 401


def test_a_large_form_is_refused(page: Page) -> None:
    assert page.log_in("x" * 5000, source="127.0.0.3").status == 413
    assert page.request("POST", "/login", "a=1&" * 20, "127.0.0.3").status == 400


def test_requests_are_limited_by_address(page: Page) -> None:
    answers = [page.get(source="127.0.0.7") for _ in range(100)]
    refused = [answer for answer in answers if answer.status == 429]
    assert refused and "too many requests from 127.0.0.7" in refused[0].text
    assert answers[0].status == page.get(source="127.0.0.8").status == 401


def test_wrong_tokens_are_limited_by_address(page: Page) -> None:
    statuses = [page.log_in("kft_wrong", source="127.0.0.4").status for _ in range(7)]
    assert statuses[:5] == [401] * 5
    assert statuses[5:] == [429] * 2
    refused = page.request("GET", "/", source="127.0.0.4", Authorization="Bearer kft_wrong")
    assert refused.status == 429 and int(refused.headers["Retry-After"]) >= 1
    assert page.log_in(page.farm.tokens["acme", Role.READER], source="127.0.0.5").status == 303


@pytest.mark.third_party
def test_a_person_logs_in_opens_a_program_and_logs_out_by_keyboard(
    page: Page, key: str, browser_window: Browser
) -> None:
    browser = browser_window
    browser.open(page.url, PHONE)
    browser.tab_to("e.name === 'token'")
    browser.press("wrong", Keys.ENTER)
    browser.wait("return document.querySelector('[role=alert]')", "the refusal")
    browser.tab_to("e.name === 'token'")
    browser.press(page.farm.tokens["acme", Role.READER], Keys.ENTER)
    browser.wait("return document.querySelector('#programs')", "the overview")
    assert browser.run("return document.cookie") == ""
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
    browser.tab_to(f"e.matches('a[href*=\"{key}\"]')")
    browser.press(Keys.ENTER)
    browser.wait("return document.querySelector('details.kernel')", "the program")
    browser.run("document.querySelector('details.kernel').open = true")
    browser.wait("return document.querySelector('.panes .lines')", "the stages are shown")
    browser.driver.back()
    browser.wait("return document.querySelector('#programs')", "the overview")
    browser.tab_to("e.textContent === 'Log out'")
    browser.press(Keys.ENTER)
    browser.wait("return document.querySelector('[name=token]')", "the form")
    # A refused log-in is logged by the browser as a failed request; nothing else is.
    assert [m for m in browser.messages() if "401" not in m] == []
