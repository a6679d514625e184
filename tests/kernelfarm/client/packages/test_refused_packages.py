"""A package that does not fit, or that somebody changed, is refused before it is unpickled.

The body of each changed package makes a folder when it is unpickled.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from kernelfarm.client.packages.header import RecordedSource, SizeRange
from kernelfarm.signing import Space, new_signer
from kernelfarm.signing.key_files import PROGRAM_KEY, read_signer
from kernelfarm.v1 import manifest_pb2
from tests.support.package_machines import (
    call_model,
    header_of,
    machine,
    marking,
    of_packages,
    repacked,
    sign,
    traced_frames,
)
from tests.support.trace_machines import Fleet

Signed = manifest_pb2.SignedVariant


@dataclass(frozen=True)
class Hostile:
    """Changes the packages of a fleet; bodies make the folder `mark`."""

    fleet: Fleet
    mark: Path

    def repack(self, signed: Signed, **changes: object) -> None:
        """Puts the marking body into a package whose publisher signs it."""
        repacked(signed, marking(self.mark), **changes)
        sign(signed, self.fleet.signer())

    def forged(self, signed: Signed) -> None:
        repacked(signed, marking(self.mark))  # the signature is that of the old content

    def content_alone(self, signed: Signed) -> None:
        other = Signed.FromString(signed.SerializeToString())
        repacked(other, marking(self.mark))
        signed.content = other.content

    def unknown_key(self, signed: Signed) -> None:
        repacked(signed, marking(self.mark))
        sign(signed, new_signer(Space.TRACES))

    def key_for_programs(self, signed: Signed) -> None:
        repacked(signed, marking(self.mark))
        sign(signed, read_signer(self.fleet.keys / PROGRAM_KEY, Space.PROGRAMS))

    def expired(self, signed: Signed) -> None:
        self.repack(signed)
        sign(signed, self.fleet.signer(), not_after_s=int(time.time()) - 10)

    def other_address(self, signed: Signed) -> None:
        self.repack(signed)
        sign(signed, self.fleet.signer(), key=b"\1" * 32)

    def other_namespace(self, signed: Signed) -> None:
        self.repack(signed)
        sign(signed, self.fleet.signer(), namespace="other")

    def address_inside(self, signed: Signed) -> None:
        self.repack(signed, parts={**header_of(signed).parts, "code": "sha256 0"})

    def other_torch(self, signed: Signed) -> None:
        self.repack(signed, parts={**header_of(signed).parts, "torch": "2.0.0"})

    def other_source(self, signed: Signed) -> None:
        first, *rest = header_of(signed).sources
        self.repack(signed, sources=(replace(first, sha256="0" * 64), *rest))

    def absent_source(self, signed: Signed) -> None:
        self.repack(signed, sources=(RecordedSource("no_such_module", 1, 2, "0" * 64),))

    def other_sizes(self, signed: Signed) -> None:
        self.repack(signed, ranges=(SizeRange("input [0][0]", 0, 6, 64),))

    def no_header(self, signed: Signed) -> None:
        self.repack(signed, sources=(RecordedSource("tests", -1, 2, "0" * 64),))


REFUSED: dict[str, Callable[[Hostile, Signed], None]] = {
    "forged_manifest": Hostile.forged,
    "poisoned_blob": Hostile.content_alone,
    "untrusted_key": Hostile.unknown_key,
    "untrusted_key ": Hostile.key_for_programs,
    "expired_manifest": Hostile.expired,
    "manifest_mismatch": Hostile.other_address,
    "manifest_mismatch ": Hostile.other_namespace,
    "manifest_mismatch  ": Hostile.address_inside,
    "package_version": Hostile.other_torch,
    "source_changed": Hostile.other_source,
    "source_changed ": Hostile.absent_source,
    "guard_failed": Hostile.other_sizes,
    "malformed_message": Hostile.no_header,
}


@pytest.mark.parametrize("harm", REFUSED)
def test_a_package_is_refused_before_it_is_unpickled(fleet: Fleet, harm: str) -> None:
    machine(fleet, publishes=True)
    call_model(fleet)
    machine(fleet)
    hostile = Hostile(fleet, fleet.folder / "unpickled")
    fleet.meddling.trace_change = of_packages(lambda signed: REFUSED[harm](hostile, signed))
    seen = call_model(fleet)
    refused = {name: times for name, times in seen.items() if name.startswith("refused.")}
    assert refused == {f"refused.packages.{harm.strip()}": 1}
    assert not hostile.mark.exists()
    assert traced_frames() == 1
    assert "packages.loaded" not in seen


def test_what_a_publisher_really_signed_is_unpickled(fleet: Fleet) -> None:
    """So the folder of the tests above would be there if anything had unpickled the package."""
    machine(fleet, publishes=True)
    call_model(fleet)
    machine(fleet)
    hostile = Hostile(fleet, fleet.folder / "unpickled")
    fleet.meddling.trace_change = of_packages(hostile.repack)
    seen = call_model(fleet)
    assert hostile.mark.exists()
    assert (seen["refused.packages.not_loadable"], traced_frames()) == (1, 1)
