"""Facts and guards of manifests as messages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kernelfarm.ir.guards import FactAtom
from kernelfarm.signing import variant_id
from kernelfarm.wire.manifest import (
    facts_from_proto,
    facts_to_proto,
    manifest_from_bytes,
    manifest_to_bytes,
)
from tests.support.ir_strategies import atoms
from tests.support.manifests import FACTS, manifest


def test_facts_return_equal() -> None:
    assert facts_from_proto(facts_to_proto(FACTS)) == FACTS


@given(st.lists(atoms(), max_size=4).map(tuple))
def test_any_guard_returns_equal(guard: tuple[FactAtom, ...]) -> None:
    made = manifest(guard=guard, variant_id=variant_id(guard))
    assert manifest_from_bytes(manifest_to_bytes(made)) == made
