"""How vendors are found."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from codegen_svc.backends import registry
from kernelfarm import targets
from kernelfarm.errors import InternalError, UnavailableError, UnknownTargetError
from tests.support.codegen_processes import PLUGIN


@pytest.fixture(autouse=True)
def fresh_registry() -> Iterator[None]:
    """Clears what was found, before and after each test."""
    caches = (registry.vendors, registry.find_backend, targets.all_targets, targets.all_vendors)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


def install(folder: Path, entry: str, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a distribution with one backend's entry point importable."""
    module = entry.rpartition("=")[2].partition(":")[0].strip()
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[kernelfarm.backends]\n{entry}\n")
    (folder / f"{module}.py").write_text(source)
    monkeypatch.syspath_prepend(folder)


def test_every_folder_is_a_vendor() -> None:
    folders = {path.parent.name for path in Path(registry.__file__).parent.glob("*/backend.py")}
    assert folders
    assert set(registry.vendors()) == folders


def test_each_vendor_is_loaded_under_its_own_name() -> None:
    for vendor in registry.vendors():
        assert registry.find_backend(vendor).vendor == vendor


def test_every_chip_has_a_vendor() -> None:
    assert {chip.vendor for chip in targets.all_targets().values()} == set(registry.vendors())


def test_a_plug_in_brings_a_vendor_and_its_chips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PLUGIN)
    assert "echo" in registry.vendors()
    assert registry.find_backend("echo").vendor == "echo"
    assert targets.target_facts("echo:one").title == "A chip that only listens"
    sys.modules.pop("echo_backend", None)


def test_an_unknown_vendor_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownTargetError, match="cpu"):
        registry.find_backend("abacus")


def test_a_vendor_whose_toolchain_is_missing_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "lost = lost_backend:BACKEND", "import no_such_toolchain\n", monkeypatch)
    with pytest.raises(UnavailableError, match="no_such_toolchain"):
        registry.find_backend("lost")


def test_a_vendor_under_another_name_is_our_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "class Backend:\n    vendor = 'other'\nBACKEND = Backend()\n"
    install(tmp_path, "masked = masked_backend:BACKEND", source, monkeypatch)
    with pytest.raises(InternalError, match="calls itself 'other'"):
        registry.find_backend("masked")
