"""The files that a compilation may use: interpreter, packages, libraries, the vendor's tools."""

from __future__ import annotations

import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from codegen_svc.backends.contract import Backend, ToolNeeds, needs_of
from codegen_svc.sandbox.restrictions import existing

_SYSTEM: Final = (
    *("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib"),
    *("/etc/ld.so.cache", "/etc/ld.so.preload", "/etc/localtime", "/usr/share/zoneinfo"),
    *("/dev/urandom", "/dev/random", "/dev/zero", "/sys/devices/system/cpu", "/proc/cpuinfo"),
)
_WRITABLE: Final = ("/dev/null",)
_PACKAGES: Final = ("kernelfarm", "codegen_svc")


def readable_paths(backend: Backend) -> tuple[Path, ...]:
    """Folders and files that compilations of a vendor may read and execute."""
    schemes = sysconfig.get_paths()
    python = [Path(schemes[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    programs = [Path(sys.executable), Path(sys.executable).resolve()]
    shared = [Path(sys.prefix) / "lib", Path(sys.base_prefix) / "lib", Path(sys.prefix) / "share"]
    own = [Path(path) for name in _PACKAGES for path in _package_paths(name)]
    plug_in = [Path(file)] if (file := _file_of(backend)) else []
    system = [Path(path) for path in _SYSTEM]
    needed = needs_of(backend).readable
    return existing([*python, *programs, *shared, *own, *plug_in, *system, *needed])


def writable_paths(needs: ToolNeeds) -> tuple[Path, ...]:
    """Files and folders that compilations may write, beside their own folder."""
    return existing([*map(Path, _WRITABLE), *needs.writable])


def _package_paths(package: str) -> list[str]:
    spec = find_spec(package)
    return list(spec.submodule_search_locations or ()) if spec is not None else []


def _file_of(backend: Backend) -> str | None:
    module = sys.modules.get(type(backend).__module__)
    return getattr(module, "__file__", None)
