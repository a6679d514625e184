"""A manifest, and facts that satisfy its guard."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from kernelfarm.ir.artifact import GuardOp
from kernelfarm.ir.guards import CallerFacts, FactAtom, FactSubject, InputFacts
from kernelfarm.signing import BlobRef, Manifest, Signer, Space, variant_id

NOW_S = 1_800_000_000

SIGNER = Signer(bytes(range(32)), Space.KERNELS)

CONTENT = b"an artifact"


GUARD = (
    FactAtom(FactSubject.SYMBOL, "s0", GuardOp.DIVISIBLE, 16),
    FactAtom(FactSubject.INPUT_SIZE, (1, 0), GuardOp.LE, 512),
    FactAtom(FactSubject.INPUT_DTYPE, 0, GuardOp.EQ, "f32"),
    FactAtom(FactSubject.ENVIRONMENT, "driver", GuardOp.GE, "550.54"),
)


def manifest(**changes: object) -> Manifest:
    """A signed manifest of a kernel; the changes are made before signing."""
    unsigned = Manifest(
        namespace="default",
        space=Space.KERNELS,
        key=b"k" * 32,
        variant_id=variant_id(GUARD),
        guard=GUARD,
        tags=("op:aten.gelu.default", "toolchain:cuda@1f2e"),
        epoch=7,
        incarnation="ab" * 16,
        content=BlobRef(hashlib.sha256(CONTENT).digest(), len(CONTENT)),
        blobs=(BlobRef(b"b" * 32, 12),),
        cost_ms=12.5,
        not_after_s=NOW_S + 60,
    )
    return SIGNER.sign(replace(unsigned, **changes))


FACTS = CallerFacts(
    {"s0": 32},
    (
        InputFacts((32, 8), (8, 1), 64, "f32"),
        InputFacts((512,), (1,), 0, "bf16"),
    ),
    {"driver": "550.54.15", "torch": "2.13.0"},
)
