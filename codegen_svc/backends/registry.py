"""The vendors: folders of `codegen_svc.backends` and installed plug-ins.

A vendor is a folder with a `backend.py` that has `BACKEND`, or an entry point of the group
`kernelfarm.backends` whose name is the vendor and whose value is such an object. A backend is
imported when it is first used, so that a missing toolchain affects only its own vendor.
"""

from __future__ import annotations

import pkgutil
from functools import lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

import codegen_svc.backends
from codegen_svc.backends.contract import Backend
from kernelfarm.errors import InternalError, UnavailableError, UnknownTargetError

ENTRY_POINT_GROUP = "kernelfarm.backends"


@lru_cache(maxsize=1)
def vendors() -> tuple[str, ...]:
    """Every vendor's name, sorted."""
    return tuple(sorted({*_folders(), *_plugins()}))


@lru_cache(maxsize=32)
def find_backend(vendor: str) -> Backend:
    """A vendor's backend; imports its toolchain.

    Raises:
        UnknownTargetError: there is no such vendor; the message lists the vendors.
        UnavailableError: its toolchain cannot be imported; the message names what is missing.
    """
    if vendor not in vendors():
        raise UnknownTargetError(f"unknown vendor {vendor!r}; expected one of {vendors()}")
    try:
        backend = _load(vendor)
    except ImportError as error:
        raise UnavailableError(f"backend {vendor} cannot be loaded: {error}") from error
    if backend.vendor != vendor:
        raise InternalError(f"backend {vendor} calls itself {backend.vendor!r}")
    return backend


@lru_cache(maxsize=32)  # each kernel asks, and finding plug-ins reads every package's metadata
def is_in_tree(vendor: str) -> bool:
    """True for a vendor of this package, False for an installed plug-in."""
    return vendor in _folders() and vendor not in _plugins()


def _load(vendor: str) -> Backend:
    plugin = _plugins().get(vendor)
    if plugin is not None:
        loaded: Backend = plugin.load()
        return loaded
    backend: Backend = import_module(f"{codegen_svc.backends.__name__}.{vendor}.backend").BACKEND
    return backend


def _folders() -> list[str]:
    return [
        found.name for found in pkgutil.iter_modules(codegen_svc.backends.__path__) if found.ispkg
    ]


def _plugins() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
