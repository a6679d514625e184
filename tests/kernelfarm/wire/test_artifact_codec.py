"""Artifacts, launch facts and guards as messages."""

import hashlib
from collections.abc import Callable

import pytest

from kernelfarm.dtypes import DType
from kernelfarm.errors import MalformedMessageError
from kernelfarm.ir.algebra.expr import ONE, ceil_div, symbol
from kernelfarm.ir.artifact import (
    BuiltKernel,
    GuardAtom,
    GuardOp,
    GuardSubject,
    LaunchFacts,
    StageText,
    TensorMapFacts,
)
from kernelfarm.v1 import artifact_pb2 as pb
from kernelfarm.wire import (
    artifact_to_proto,
    binary_digest,
    built_kernel_from_proto,
    digests_of,
    guard_from_proto,
    guard_to_proto,
    launch_facts_from_proto,
)

MAPS = (
    TensorMapFacts(0, DType.BF16, (512, 64), (128,), (128, 64), 128),
    TensorMapFacts(
        *(0, DType.F16, (symbol("s0"), 64), (32 * symbol("s0"),), (128, 64), 64),
        offset_bytes=16 * symbol("s0"),
    ),
    TensorMapFacts(
        *(0, DType.BF16, (2, 9, 9, 64), (10368, 1152, 128), (2, 4, 8, 32), 64), steps=(1, 2, 2, 1)
    ),
)
BUILT = BuiltKernel(
    binary_stage="cubin",
    stages=(StageText("ttir", b"module {}", True), StageText("cubin", b"\x7fELF", False)),
    launch=LaunchFacts(
        symbol="fused_exp",
        grid=(ceil_div(symbol("s0"), 4), ONE),
        num_warps=4,
        warp_size=32,
        shared_bytes=1024,
        registers=40,
        spills=1,
        xblock_elems=4,
        rblock_elems=128,
        local_bytes=2**40,
        arguments=("buffer", "size", *(word for made in MAPS for word in made.arguments())),
        extras=(("a", "1"), ("b", "2")),
        tensor_maps=MAPS,
        programmatic_launch=True,
    ),
    guard=tuple(
        GuardAtom(subject, name, op, 16)
        for op in GuardOp
        for subject, name in (
            (GuardSubject.SYMBOL, "s0"),
            (GuardSubject.PARAM_ADDRESS, 0),
            (GuardSubject.PARAM_EXTENT, 2),
        )
    ),
    is_stub=True,
    stub_reason="no device",
    notes=("a hint was ignored",),
)
KEY = b"\7" * 32


def test_an_artifact_and_its_contents_return_equal() -> None:
    message, blobs = artifact_to_proto(BUILT, KEY, "cuda:sm_90a", "cuda@1", 12.5)
    again = pb.Artifact.FromString(message.SerializeToString())
    assert built_kernel_from_proto(again, blobs) == BUILT
    assert (again.key, again.target, again.toolchain) == (KEY, "cuda:sm_90a", "cuda@1")
    assert again.cost_ms == 12.5


def test_contents_are_named_by_their_digest() -> None:
    message, blobs = artifact_to_proto(BUILT, KEY, "cuda:sm_90a", "cuda@1", 0)
    assert set(blobs) == set(digests_of(message))
    assert all(hashlib.sha256(content).digest() == name for name, content in blobs.items())
    assert blobs[binary_digest(message)] == b"\x7fELF"


def test_a_damaged_content_is_refused() -> None:
    message, blobs = artifact_to_proto(BUILT, KEY, "cuda:sm_90a", "cuda@1", 0)
    blobs[binary_digest(message)] = b"other"
    with pytest.raises(MalformedMessageError, match=r"stage cubin: content .* is damaged"):
        built_kernel_from_proto(message, blobs)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda a: setattr(a, "key", b""), "key: 0 bytes; expected 32"),
        (lambda a: setattr(a, "binary_stage", "so"), "'so'; expected one of ttir, cubin"),
        (lambda a: setattr(a.stages[0].blob, "sha256", b"x"), "stage ttir: 1 bytes"),
        (lambda a: setattr(a.launch, "symbol", ""), "symbol ''"),
        (lambda a: setattr(a.launch.tensor_maps[0], "buffer", 1), "expected a buffer below 1"),
        (lambda a: a.launch.tensor_maps[0].extents.append(2), "a stride less"),
        (lambda a: a.launch.tensor_maps[0].box.pop(), "a box of 1 to 256 elements along each"),
        (lambda a: setattr(a.launch.tensor_maps[0], "swizzle_bytes", 48), "swizzle_bytes=48"),
        (lambda a: setattr(a.launch.tensor_maps[0], "offset_bytes", 8), "offset 8; expected"),
        (lambda a: a.launch.tensor_maps[1].varying_strides_bytes.pop(), "a stride less"),
        (
            lambda a: a.launch.tensor_maps[1].varying_extents.extend(
                [a.launch.tensor_maps[1].varying_extents[0]] * 4
            ),
            "6 extents and 1 strides; expected at most 5",
        ),
        (lambda a: a.launch.arguments.pop(), "expected each with its extents and strides"),
        (lambda a: a.launch.tensor_maps.pop(), "for 2 tensor maps"),
        (lambda a: a.launch.tensor_maps[2].steps.pop(), "by steps of 1 to 8, if there are"),
        (lambda a: a.launch.tensor_maps[2].steps.__setitem__(1, 9), "by steps of 1 to 8"),
        (lambda a: a.launch.tensor_maps[2].steps.__setitem__(1, 0), "by steps of 1 to 8"),
        (lambda a: a.launch.tensor_maps[2].box.__setitem__(2, 160), "a box of 1 to 256"),
        (lambda a: a.launch.tensor_maps[2].ClearField("steps"), "expected each with its"),
    ],
)
def test_an_unusable_artifact_is_refused(
    damage: Callable[[pb.Artifact], object], message: str
) -> None:
    artifact, blobs = artifact_to_proto(BUILT, KEY, "cuda:sm_90a", "cuda@1", 0)
    damage(artifact)
    with pytest.raises(MalformedMessageError, match=message):
        built_kernel_from_proto(artifact, blobs)


@pytest.mark.parametrize(
    "atom",
    [
        pb.GuardAtom(op=pb.GUARD_OP_EQ),
        pb.GuardAtom(symbol="s0"),
        pb.GuardAtom(symbol="s0", op=55),  # type: ignore[arg-type]  # on purpose
        pb.GuardAtom(symbol="s0", op=pb.GUARD_OP_DIVISIBLE, operand=0),
    ],
)
def test_an_unclear_guard_is_refused_and_does_not_count_as_true(atom: pb.GuardAtom) -> None:
    with pytest.raises(MalformedMessageError, match="guard atom 0"):
        guard_from_proto(pb.Guard(atoms=[atom]))


def test_a_guard_returns_equal() -> None:
    assert guard_from_proto(guard_to_proto(BUILT.guard)) == BUILT.guard


def test_a_grid_of_four_axes_is_refused() -> None:
    facts = pb.LaunchFacts(symbol="k")
    for _ in range(4):
        facts.grid.add().constant = 1
    with pytest.raises(MalformedMessageError, match="4 grid axes"):
        launch_facts_from_proto(facts)
