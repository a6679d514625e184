"""Bundles whose tuning records were exchanged, as a liar or an older version would write them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kernelfarm.client.bundle.contents import program_of
from kernelfarm.client.bundle.layout import BundledProgram, open_bundle, writing_bundle

Change = Callable[[bytes], bytes | None]
"""What stands in for a serialized record; None leaves it out."""


def with_records(path: Path, into: Path, change: Change) -> Path:
    """A new bundle with the programs of another one; all of its digests are right."""
    with open_bundle(path) as bundle, writing_bundle(into) as writer:
        for stored in bundle.programs():
            manifest = program_of(stored).manifest
            records = [change(record) for record in stored.tuning()]
            writer.add(
                BundledProgram(
                    manifest.key,
                    stored.target,
                    (),
                    stored.signed(),
                    tuple(stored.traces()),
                    {blob.sha256: stored.blob(blob.sha256) for blob in manifest.blobs},
                    tuple(stored.packages()),
                    tuple(record for record in records if record is not None),
                )
            )
    return into
