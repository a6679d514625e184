"""Messages assembled from parts that are serialized already."""

from __future__ import annotations

import pytest

from kernelfarm.v1 import compile_service_pb2 as api
from kernelfarm.v1 import manifest_pb2
from kernelfarm.wire.embedded import embedded, field_tag


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_384, 3_000_000])
def test_parts_make_the_message_that_the_library_makes(size: int) -> None:
    manifest = manifest_pb2.Manifest(namespace="default", tags=["op:a", "op:b"])
    signed = manifest_pb2.SignedVariant(manifest=manifest, content=bytes(size))
    expected = api.LookupResponse(program=api.ProgramResult(key=b"k" * 32, signed=signed))
    parts = (
        *embedded(
            field_tag(manifest_pb2.SignedVariant, "manifest"),
            manifest.SerializeToString(),
        ),
        *embedded(field_tag(manifest_pb2.SignedVariant, "content"), bytes(size)),
    )
    program = embedded(field_tag(api.ProgramResult, "signed"), *parts)
    key = api.ProgramResult(key=b"k" * 32).SerializeToString()
    tag = field_tag(api.LookupResponse, "program")
    written = b"".join(embedded(tag, key, *program))
    assert api.LookupResponse.FromString(written) == expected


def test_later_parts_are_merged_into_earlier_ones() -> None:
    stored = api.ProgramResult(key=b"k" * 32, target="cpu:x86-64-v3").SerializeToString()
    reported = api.ProgramResult(outcome=api.CACHE_OUTCOME_HIT).SerializeToString()
    merged = api.ProgramResult.FromString(stored + reported)
    assert (merged.target, merged.outcome) == ("cpu:x86-64-v3", api.CACHE_OUTCOME_HIT)
