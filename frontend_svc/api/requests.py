"""Fields that the requests of several public services share."""

from __future__ import annotations

from frontend_svc.cache.tiered_programs import UNKNOWN_CALLER, Caller
from frontend_svc.flow.compile_options import CompileOptions
from kernelfarm.signing.tags import model_tag
from kernelfarm.v1 import compile_service_pb2 as api
from kernelfarm.v1 import manifest_pb2
from kernelfarm.wire.manifest import facts_from_proto
from kernelfarm.wire.product_choice import node_choices_from_proto, product_choice_from_proto

MAX_BLOBS_PER_READ = 4096


def caller_of(model: str, facts: manifest_pb2.CallerFacts) -> Caller:
    """The caller as its request describes it.

    Raises:
        CallerError: the model's name has characters that no tag may contain.
    """
    if not model and not facts.ByteSize():
        return UNKNOWN_CALLER
    return Caller((model_tag(model),) if model else (), facts_from_proto(facts))


def options_of(options: api.CompileOptions) -> CompileOptions:
    """The options of a message.

    Raises:
        MalformedMessageError: an option has a value that does not exist.
    """
    products = product_choice_from_proto(options.products)
    choices = node_choices_from_proto(options.product_choices)
    return CompileOptions(
        options.deterministic,
        options.fallback_random,
        products.value,
        tuple((found.node, found.choice.value) for found in choices),
    )
