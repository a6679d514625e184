"""The Dockerfile: an image for each service and vendor, none with torch, none that runs as root."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path

import pytest

from codegen_svc.backends.registry import is_in_tree, vendors
from tests.support.known_variables import ROOT, VARIABLES

SERVICES = ("frontend", "optimizer", "codegen")
WORKERS = tuple(f"worker-{vendor}" for vendor in vendors() if is_in_tree(vendor))


@dataclass(frozen=True)
class Target:
    """A target of the build: the instructions of its image, with those of the images below it."""

    name: str
    lines: tuple[str, ...]

    def last(self, instruction: str) -> str:
        """The arguments of the last such instruction."""
        return [line for line in self.lines if line.startswith(instruction)][-1].partition(" ")[2]

    def environment(self) -> dict[str, str]:
        return dict(re.findall(r"(KERNELFARM_\w+)=(\S+)", "\n".join(self.lines)))


@pytest.fixture(scope="module")
def text() -> str:
    return (ROOT / "Dockerfile").read_text()


@pytest.fixture(scope="module")
def targets(text: str) -> dict[str, Target]:
    """Every target by its name, in the order of the file."""
    joined = re.sub(r"\s*\\\n\s*", " ", text)
    found: dict[str, Target] = {}
    for stage in joined.split("\nFROM ")[1:]:
        head, *lines = (line for line in stage.splitlines() if line and not line.startswith("#"))
        base, _, name = head.partition(" AS ")
        below = found[base].lines if base in found else ()
        found[name] = Target(name, (*below, *lines))
    return found


def test_hadolint_finds_nothing() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    checked = subprocess.run(
        [hadolint, ROOT / "Dockerfile"], capture_output=True, text=True, check=False, timeout=60
    )
    assert checked.returncode == 0, checked.stdout


def test_each_service_and_each_vendor_has_an_image(targets: dict[str, Target]) -> None:
    for service in SERVICES:
        assert targets[service].last("CMD") == f'["python", "-m", "{service}_svc"]'
    for worker in WORKERS:
        vendor = worker.partition("-")[2]
        command = f'["python", "-m", "codegen_svc.worker", "--queue", "{vendor}"]'
        assert targets[worker].last("CMD") == command
    assert list(targets)[-1] == "all"


@pytest.mark.parametrize("name", [*SERVICES, *WORKERS, "all"])
def test_no_image_runs_as_root_or_has_torch(targets: dict[str, Target], name: str) -> None:
    target = targets[name]
    assert re.fullmatch(r"[1-9]\d*", target.last("USER"))
    assert target.last("STOPSIGNAL") == "SIGTERM"
    assert target.last("HEALTHCHECK")
    assert "torch" not in "\n".join(target.lines)


def test_an_image_has_the_packages_of_its_service_alone(targets: dict[str, Target]) -> None:
    def packages(name: str) -> set[str]:
        copied = "\n".join(targets[name].lines)
        return set(re.findall(r"^COPY --from=package /(\w+_svc) ", copied, re.MULTILINE))

    assert {service: packages(service) for service in SERVICES} == {
        service: {f"{service}_svc"} for service in SERVICES
    }
    assert all(packages(worker) == {"codegen_svc"} for worker in WORKERS)
    assert packages("all") == {f"{service}_svc" for service in SERVICES}


def test_the_build_copies_every_package_and_the_context_has_it(text: str) -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = pyproject["tool"]["setuptools"]["packages"]["find"]["include"]
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    packages = {name for name in folders if any(fnmatch(name, p) for p in patterns)}
    assert {"kernelfarm", *(f"{service}_svc" for service in SERVICES)} <= packages
    assert set(re.findall(r"^COPY (\w+) \1$", text, re.MULTILINE)) == packages
    allowed = (ROOT / ".dockerignore").read_text().split()
    assert {f"!{name}" for name in packages} <= set(allowed)


@pytest.mark.parametrize("name", [*SERVICES, "all"])
def test_services_listen_where_others_look_for_them(targets: dict[str, Target], name: str) -> None:
    stated = targets[name].environment()
    assert stated.keys() <= VARIABLES
    listens = {key: value for key, value in stated.items() if key.endswith("_LISTEN")}
    assert len(listens) == (len(SERVICES) if name == "all" else 1)
    for key, address in listens.items():
        service = key.removeprefix("KERNELFARM_").removesuffix("_LISTEN").lower()
        kind = getattr(import_module(f"{service}_svc.settings"), f"{service.capitalize()}Settings")
        default = kind.model_fields[f"{service}_listen"].default
        assert address.startswith("0.0.0.0:")
        assert address.rpartition(":")[2] == default.rpartition(":")[2]
