"""Fingerprints of code: equal sources have equal fingerprints, wherever they are installed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from kernelfarm import digest, dtypes, ir, targets, traffic, wire

_SUFFIXES = (".py", ".toml")

_SHARED = (digest, dtypes, ir, targets, traffic, wire)
"""Code of several services that shapes results: IRs, types, targets, cost model, wire formats."""


def service_fingerprint(*packages: ModuleType) -> str:
    """Hex digest over a service's own code and the shared code and facts that shape results.

    The facts include those of chips that installed packages add.
    """
    hasher = hashlib.sha256()
    for package in (*packages, *_SHARED):
        for name, path in sources_of(package):
            _add(hasher, name, path.read_bytes())
    for name, content in targets.plugin_files():
        _add(hasher, name, content)
    return hasher.hexdigest()


def _add(hasher: hashlib._Hash, name: str, content: bytes) -> None:
    hasher.update(f"{len(name)}:{name}{len(content)}:".encode())
    hasher.update(content)


def sources_of(package: ModuleType) -> Iterator[tuple[str, Path]]:
    """The sources of a package or module (code and TOML files), with names relative to it."""
    own = Path(package.__file__ or "")
    if own.name != "__init__.py":
        yield package.__name__, own
        return
    found = (p for p in own.parent.rglob("*") if p.suffix in _SUFFIXES and p.is_file())
    for path in sorted(found):
        yield f"{package.__name__}/{path.relative_to(own.parent).as_posix()}", path
