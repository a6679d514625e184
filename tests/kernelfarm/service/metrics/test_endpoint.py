"""The HTTP endpoint of metrics: what it serves, and what a caller cannot do to the process."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import threading
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from structlog.testing import capture_logs

from kernelfarm.errors import CallerError, UnavailableError
from kernelfarm.service.metrics import endpoint
from kernelfarm.service.metrics.endpoint import metrics_endpoint, state_build
from kernelfarm.service.settings import ServiceSettings
from tests.support.certificates import Authority
from tests.support.farm import TIMEOUT_S, wait_until
from tests.support.scrapes import page, scrape, value


@contextlib.contextmanager
def served(**settings: object) -> Iterator[str]:
    """The address of an endpoint in this process."""
    with (
        capture_logs() as lines,
        metrics_endpoint(ServiceSettings(metrics_listen="127.0.0.1:0", **settings)),  # type: ignore[arg-type] # fields
    ):
        (line,) = (line for line in lines if line["event"] == "metrics_listening")
        yield line["address"]


def test_a_process_serves_its_build_its_memory_and_its_open_files() -> None:
    state_build("test", "test@1")
    with served() as address:
        samples = scrape(address)
    assert value(samples, "kernelfarm_build_info", service="test", toolchain="test@1") == 1
    assert value(samples, "process_resident_memory_bytes") > 1e6
    assert value(samples, "process_open_fds") > 2
    assert "kernelfarm_child_processes" in {name for name, _ in samples}


def test_without_an_address_nothing_is_served() -> None:
    threads = threading.active_count()
    with metrics_endpoint(ServiceSettings()):
        assert threading.active_count() == threads


def test_other_paths_are_not_found() -> None:
    with served() as address, pytest.raises(urllib.error.HTTPError, match="404"):
        page(address, "/")


def test_a_flood_of_scrapes_is_refused() -> None:
    with served() as address, pytest.raises(urllib.error.HTTPError, match="429"):
        for _ in range(40):
            page(address)


def test_silent_connections_cannot_keep_scrapes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "_CONNECTION_S", 0.2)
    with served() as address, contextlib.ExitStack() as silent:
        host, port = address.split(":")
        before = threading.active_count()
        for _ in range(30):
            silent.enter_context(socket.create_connection((host, int(port)), TIMEOUT_S))
        wait_until(lambda: answers(address), TIMEOUT_S, "a page beside silent connections")
        assert threading.active_count() <= before + 2 * endpoint._CONNECTIONS


def answers(address: str) -> bool:
    with contextlib.suppress(OSError):
        return "kernelfarm" in page(address)
    return False


def test_a_long_request_line_ends_its_connection() -> None:
    with served() as address:
        host, port = address.split(":")
        caller = socket.create_connection((host, int(port)), TIMEOUT_S)
        with caller, contextlib.suppress(OSError):
            caller.sendall(b"GET /" + b"x" * 200_000)
            assert b"200" not in caller.recv(100)
        assert answers(address)


@pytest.mark.parametrize("listen", ["9464", "localhost:", "localhost:70000", ":x"])
def test_an_address_that_is_none_is_refused(listen: str) -> None:
    with (
        pytest.raises(CallerError, match="expected HOST:PORT"),
        metrics_endpoint(ServiceSettings(metrics_listen=listen)),
    ):
        pass


def test_an_address_in_use_is_named() -> None:
    with (
        served() as address,
        pytest.raises(UnavailableError, match=re.escape(f"cannot serve metrics on {address}")),
        metrics_endpoint(ServiceSettings(metrics_listen=address)),
    ):
        pass


def test_with_internal_tls_the_metrics_are_encrypted(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "farm")
    pair = authority.issue("farm", sans=(x509.DNSName("localhost"),))
    with served(
        internal_cert_file=pair.cert_file,
        internal_key_file=pair.key_file,
        internal_ca_file=authority.ca_file,
    ) as address:
        local = address.replace("127.0.0.1", "localhost")
        trusting = ssl.create_default_context(cafile=authority.ca_file)
        assert value(scrape(local, trusting), "process_open_fds") > 2
        with pytest.raises(OSError, match=r"reset|closed|disconnected|BadStatusLine|empty"):
            page(address)


def test_callers_must_show_a_certificate_if_a_ca_is_set(tmp_path: Path) -> None:
    farm, monitoring = Authority(tmp_path / "farm"), Authority(tmp_path / "monitoring")
    pair = farm.issue("farm", sans=(x509.DNSName("localhost"),))
    prometheus = monitoring.issue("prometheus")
    with served(
        internal_cert_file=pair.cert_file,
        internal_key_file=pair.key_file,
        internal_ca_file=farm.ca_file,
        metrics_client_ca_file=monitoring.ca_file,
    ) as address:
        local = address.replace("127.0.0.1", "localhost")
        anonymous = ssl.create_default_context(cafile=farm.ca_file)
        with pytest.raises(OSError, match=r"certificate required|reset|closed|EOF"):
            page(local, tls=anonymous)
        named = ssl.create_default_context(cafile=farm.ca_file)
        named.load_cert_chain(prometheus.cert_file, prometheus.key_file)
        assert value(scrape(local, named), "process_open_fds") > 2


def test_a_ca_for_callers_needs_tls(tmp_path: Path) -> None:
    with (
        pytest.raises(CallerError, match="needs TLS"),
        served(metrics_client_ca_file=tmp_path / "ca.pem"),
    ):
        pass
