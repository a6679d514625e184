"""What the public services read from their requests alike."""

from __future__ import annotations

from frontend_svc.cache.tiered_programs import Caller
from kernelfarm.signing.tags import model_tag
from kernelfarm.v1 import compile_service_pb2 as api
from kernelfarm.v1 import manifest_pb2
from kernelfarm.wire.manifest import facts_from_proto

MAX_BLOBS_PER_READ = 4096


def caller_of(model: str, facts: manifest_pb2.CallerFacts) -> Caller:
    """Who asks, from what a request tells.

    Raises:
        CallerError: the model's name cannot stand in a tag.
    """
    return Caller((model_tag(model),) if model else (), facts_from_proto(facts))


def options_of(options: api.CompileOptions) -> tuple[tuple[str, str], ...]:
    """Every field of the options as text, sorted: all of them are part of the program key."""
    fields = api.CompileOptions.DESCRIPTOR.fields
    return tuple(sorted((field.name, str(getattr(options, field.name))) for field in fields))
