"""What a verified publisher's package must agree with, before PyTorch unpickles it.

The signature, the publisher, the address and the expiry were checked before
(`kernelfarm.client.traces.signed_entries`).
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import import_module

from kernelfarm.bounded_text import quoted
from kernelfarm.client.packages.header import PackageHeader, RecordedSource, SizeRange
from kernelfarm.digest import trace_digest
from kernelfarm.errors import CallerError, ManifestMismatchError

VERSION_PARTS = ("package", "torch", "python", "system")
"""The parts of a digest that state versions."""


class PackageRefusedError(CallerError):
    """A package that does not apply here; the model is traced."""

    reason = "PACKAGE_REFUSED"


class PackageVersionError(PackageRefusedError):
    """A package of another version of kernelfarm, PyTorch, Python or the GPU's software."""

    reason = "PACKAGE_VERSION"


class SourceChangedError(PackageRefusedError):
    """A package of a model whose source code differs from that of this process."""

    reason = "SOURCE_CHANGED"


class GuardFailedError(PackageRefusedError):
    """A package whose guards do not hold for this call."""

    reason = "GUARD_FAILED"


class NotLoadableError(PackageRefusedError):
    """A package that PyTorch cannot load."""

    reason = "NOT_LOADABLE"


def check_header(
    header: PackageHeader,
    parts: Mapping[str, str],
    extents: Mapping[str, Sequence[int]],
) -> None:
    """Checks that a package is for a call with these parts and these extents of inputs.

    Raises:
        PackageVersionError, ManifestMismatchError, SourceChangedError, GuardFailedError: it is not.
    """
    _check_versions(header, parts)
    seen, expected = trace_digest(header.parts), trace_digest(parts)
    if seen != expected:
        raise ManifestMismatchError(
            f"expected the package with digest {expected.hex()[:16]}, got that with"
            f" {seen.hex()[:16]}"
        )
    for source in header.sources:
        _check_source(source)
    for stated in header.ranges:
        _check_range(stated, extents)


def _check_versions(header: PackageHeader, parts: Mapping[str, str]) -> None:
    for name in VERSION_PARTS:
        seen, expected = header.parts.get(name, "none"), parts.get(name, "none")
        if seen != expected:
            raise PackageVersionError(
                f"the package was made with {name} {quoted(seen)}; expected {quoted(expected)}:"
                " publish one from the versions of this process"
            )


def _check_source(source: RecordedSource) -> None:
    where = f"{source.module}, lines {source.first} to {source.last - 1}"
    lines = _lines(source.module)
    if lines is None:
        raise SourceChangedError(
            f"the package was made from {where}, which this process cannot read"
        )
    text = "".join(lines[max(0, source.first - 1) : max(0, source.last - 1)])
    if hashlib.sha256(text.encode()).hexdigest() != source.sha256:
        raise SourceChangedError(
            f"{where}, differ from those that the package was made from: publish one from this"
            " source"
        )


@lru_cache(maxsize=1024)
def _lines(module: str) -> tuple[str, ...] | None:
    """The source of a module; PyTorch's recorded lines are those of `inspect`."""
    try:
        return tuple(inspect.findsource(import_module(module))[0])
    except (ImportError, OSError, TypeError, ValueError):
        return None


def _check_range(stated: SizeRange, extents: Mapping[str, Sequence[int]]) -> None:
    found = extents.get(stated.input, ())
    extent = found[stated.axis] if stated.axis < len(found) else None
    most = stated.most
    if extent is None or extent < stated.least or (most is not None and extent > most):
        raise GuardFailedError(
            f"{stated.input} has extent {extent} on axis {stated.axis}; the package was made for"
            f" {stated.least} to {'any' if most is None else most}"
        )
