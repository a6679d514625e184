"""The Dockerfile and the compose file agree with pyproject.toml and with the settings."""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatch
from importlib import import_module
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


@pytest.fixture(scope="module")
def dockerfile() -> str:
    return (ROOT / "Dockerfile").read_text()


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


def test_the_dockerfile_copies_every_package_and_the_context_has_it(dockerfile: str) -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = pyproject["tool"]["setuptools"]["packages"]["find"]["include"]
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    packages = {name for name in folders if any(fnmatch(name, p) for p in patterns)}
    assert {"kernelfarm", *(f"{service}_svc" for service in SERVICES)} <= packages
    copied = set(re.findall(r"^COPY (\w+) \1$", dockerfile, re.MULTILINE))
    assert copied == packages
    allowed = (ROOT / ".dockerignore").read_text().split()
    assert {f"!{name}" for name in packages} <= set(allowed)


def test_the_image_runs_the_frontend_and_not_as_root(dockerfile: str) -> None:
    final = dockerfile.rpartition("\nFROM ")[2]
    assert 'CMD ["python", "-m", "frontend_svc"]' in final
    assert re.search(r"^USER [1-9]\d*$", final, re.MULTILINE)
    assert "torch" not in final
    listens = dict(re.findall(r"(KERNELFARM_\w+_LISTEN)=(\S+)", final))
    for name, address in listens.items():
        assert name in VARIABLES
        # The port at which the other services look for it by default.
        service = name.removeprefix("KERNELFARM_").removesuffix("_LISTEN").lower()
        kind = getattr(import_module(f"{service}_svc.settings"), f"{service.capitalize()}Settings")
        default = kind.model_fields[f"{service}_listen"].default
        assert address.rpartition(":")[2] == default.rpartition(":")[2]
    assert len(listens) == len(SERVICES)


def test_the_probe_succeeds_if_the_farm_serves(farm: Farm) -> None:
    assert probe([farm.endpoint]) == 0


def test_the_probe_fails_if_no_farm_serves(capsys: pytest.CaptureFixture[str]) -> None:
    assert probe(["127.0.0.1:1"]) == 1
    assert capsys.readouterr().err == "no service at 127.0.0.1:1\n"


def test_the_probe_lists_workers_that_have_their_toolchain(farm: Farm) -> None:
    (codegen,) = re.findall(r'"address": "([^"]+)"', farm.log("codegen"))
    assert probe([codegen, "--worker", "cpu"]) == 0
    assert probe([codegen, "--worker", "no-such-vendor"]) == 1
