"""The wheel holds every file of the packages, its license and its notices."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.farm import TIMEOUT_S

ROOT = Path(__file__).parents[2]
PACKAGES = ("kernelfarm", "frontend_svc", "optimizer_svc", "codegen_svc")
NOT_SOURCES = shutil.ignore_patterns("__pycache__", "*.pyc")


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    """The `project` table of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel built from a copy of what the image's build sees."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, source)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, source / package, ignore=NOT_SOURCES)
    target = tmp_path_factory.mktemp("wheel")
    # Without isolation nothing is downloaded; the development environment has setuptools.
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    command = [sys.executable, "-m", "pip", "wheel", *options, "-w", str(target), str(source)]
    built = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert built.returncode == 0, built.stderr
    (path,) = target.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_holds_every_file_of_the_packages(wheel: zipfile.ZipFile) -> None:
    sources = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert packed == sources
    assert {"kernelfarm/py.typed", "kernelfarm/targets/cuda_sm_90a.toml"} <= packed
    assert "kernelfarm/cache/lua/publish.lua" in packed


def test_the_wheel_carries_license_and_notice(wheel: zipfile.ZipFile) -> None:
    licenses = {name.rpartition("/")[2] for name in wheel.namelist() if "/licenses/" in name}
    assert licenses == {"LICENSE", "NOTICE"}


def test_the_wheel_has_the_command_and_the_torch_backend(wheel: zipfile.ZipFile) -> None:
    (name,) = (n for n in wheel.namelist() if n.endswith("entry_points.txt"))
    text = wheel.read(name).decode()
    assert "kernelfarm = kernelfarm.cli:main" in text
    assert "kernelfarm = kernelfarm.client.torch_backend:kernelfarm" in text


def test_the_notice_names_every_package_that_an_image_installs(project: dict[str, Any]) -> None:
    notice = (ROOT / "NOTICE").read_text()
    named = {canonicalize_name(word) for word in re.findall(r"[A-Za-z][\w.-]*\w", notice)}
    reference = [*project["dependencies"], *project["optional-dependencies"]["farm"]]
    assert installed_for(reference) - named == set()


def test_every_package_that_an_image_installs_is_pinned(project: dict[str, Any]) -> None:
    lines = (ROOT / "constraints.txt").read_text().split()
    pinned = {canonicalize_name(line.partition("==")[0]) for line in lines}
    reference = [*project["dependencies"], *project["optional-dependencies"]["farm"]]
    by_pyproject = {"triton"}  # `==` there, beside the code that depends on the version
    assert installed_for(reference) - pinned - by_pyproject == set()


def installed_for(requirements: list[str]) -> set[str]:
    """Names of the packages that these requirements install, including their dependencies."""
    found: set[tuple[str, frozenset[str]]] = set()
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        reference = waiting.pop()
        key = (canonicalize_name(reference.name), frozenset(reference.extras))
        if key in found:
            continue
        found.add(key)
        waiting += [
            needed
            for needed in map(Requirement, metadata.requires(reference.name) or ())
            if needed.marker is None
            or any(needed.marker.evaluate({"extra": extra}) for extra in ("", *reference.extras))
        ]
    return {name for name, _ in found}
