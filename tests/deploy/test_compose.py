"""The compose file agrees with the settings, and its probes work."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import Any

import pytest
import yaml

from codegen_svc.backends.registry import vendors
from kernelfarm.service.probes import main as probe
from tests.support.farm import Farm
from tests.support.known_variables import ROOT, VARIABLES

SERVICES = ("frontend", "optimizer", "codegen")


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    """The services of the compose file, by name."""
    return yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())["services"]


def test_compose_sets_only_variables_that_settings_know(
    services: dict[str, dict[str, Any]],
) -> None:
    used = {name for service in services.values() for name in service.get("environment", {})}
    assert used
    assert used - VARIABLES == set()


def test_the_readme_names_only_variables_that_settings_or_compose_know() -> None:
    compose = (ROOT / "deploy/compose.yaml").read_text()
    known = VARIABLES | set(re.findall(r"\$\{(KERNELFARM_\w+)", compose)) | {"KERNELFARM_ENDPOINT"}
    readme = (ROOT / "deploy/README.md").read_text()
    assert set(re.findall(r"`(KERNELFARM_\w+)`", readme)) - known == set()


def test_compose_runs_every_service_and_one_worker_for_each_vendor(
    services: dict[str, dict[str, Any]],
) -> None:
    workers = {f"worker-{vendor}" for vendor in vendors()}
    assert set(services) == {"broker", "cache", *SERVICES, *workers}
    for vendor in vendors():
        command = services[f"worker-{vendor}"]["command"]
        assert command[:5] == ["python", "-m", "codegen_svc.worker", "--queue", vendor]
        assert find_spec(command[2])
    for service in SERVICES:
        assert services[service]["command"] == ["python", "-m", f"{service}_svc"]


def test_only_the_frontend_is_published_and_on_loopback_alone(
    services: dict[str, dict[str, Any]],
) -> None:
    published = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert list(published) == ["frontend"]
    assert all(port.startswith("127.0.0.1:") for port in published["frontend"])


def test_a_service_that_others_wait_for_has_a_health_check(
    services: dict[str, dict[str, Any]],
) -> None:
    for service in services.values():
        for name, wait in service.get("depends_on", {}).items():
            assert wait == {"condition": "service_healthy"}
            assert services[name]["healthcheck"]["test"]


@pytest.mark.parametrize(
    ("server", "policy"), [("broker", "noeviction"), ("cache", "volatile-lfu")]
)
def test_servers_keep_nothing_on_disk_and_evict_as_their_role_says(
    services: dict[str, dict[str, Any]], server: str, policy: str
) -> None:
    flags = services[server]["command"][1:]
    stated = dict(zip(flags[::2], flags[1::2], strict=True))
    assert stated["--maxmemory-policy"] == policy
    assert (stated["--save"], stated["--appendonly"]) == ("", "no")


def test_the_probe_succeeds_if_the_farm_serves(farm: Farm) -> None:
    assert probe([farm.endpoint]) == 0


def test_the_probe_fails_if_no_farm_serves(capsys: pytest.CaptureFixture[str]) -> None:
    assert probe(["127.0.0.1:1"]) == 1
    assert capsys.readouterr().err == "no service at 127.0.0.1:1\n"


def test_the_probe_lists_workers_that_have_their_toolchain(farm: Farm) -> None:
    (codegen,) = re.findall(r'"address": "([^"]+)"', farm.log("codegen"))
    assert probe([codegen, "--worker", "cpu"]) == 0
    assert probe([codegen, "--worker", "no-such-vendor"]) == 1
