"""Fingerprints of code: equal sources have equal ones, wherever they are installed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

_SUFFIXES = (".py", ".toml")


def fingerprint_of_packages(*packages: ModuleType) -> str:
    """Hex digest over the names and contents of all sources and tables of some packages."""
    hasher = hashlib.sha256()
    for package in packages:
        folder = Path(package.__file__ or "").parent
        for path in _sources(folder):
            name = f"{package.__name__}/{path.relative_to(folder).as_posix()}"
            content = path.read_bytes()
            hasher.update(f"{len(name)}:{name}{len(content)}:".encode())
            hasher.update(content)
    return hasher.hexdigest()


def _sources(folder: Path) -> Iterator[Path]:
    return iter(sorted(p for p in folder.rglob("*") if p.suffix in _SUFFIXES and p.is_file()))
