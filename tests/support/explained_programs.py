"""Programs as their pages see them, built by hand: every name that a client chooses is hostile."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import pairwise

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import as_expr
from kernelfarm.ir.artifact import GuardAtom, GuardOp, GuardSubject, LaunchFacts
from kernelfarm.ir.program_ir import Buffer, BufferKind, ExternCall, Launch, Plan, TensorView
from kernelfarm.pages.program_facts import ProgramFacts, StageFacts, VariantFacts
from kernelfarm.pages.program_view import ProgramView, program_view
from kernelfarm.signing import BlobRef, Manifest, Space

HOSTILE = (
    "\"><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>{{7*7}}&amp;\u2028"
)
"""A text that acts if a page inserts it as HTML, as a template or as an attribute."""
ELEMS = 4096


class Blobs:
    """Stage contents by SHA-256."""

    def __init__(self) -> None:
        self.contents: dict[bytes, bytes] = {}

    def stage(self, name: str, text: str | bytes) -> StageFacts:
        """Stores a stage."""
        content = text.encode() if isinstance(text, str) else text
        sha256 = hashlib.sha256(content).digest()
        self.contents[sha256] = content
        return StageFacts(name, sha256, len(content), isinstance(text, str))

    def read(self, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        """The contents of some digests."""
        return {sha256: self.contents[sha256] for sha256 in digests}


def hostile_view(kernels: int = 3) -> ProgramView:
    """The view of a program of several kernels, with an extern step after each second one."""
    blobs = Blobs()
    return program_view(hostile_program(blobs, kernels), blobs.read)


def hostile_program(blobs: Blobs, kernels: int) -> ProgramFacts:
    """A chain: each kernel reads what the step before it wrote."""
    names = tuple(f"fused_add_exp_{number:08x}" for number in range(kernels))
    buffers = [Buffer("in0", BufferKind.INPUT, DType.F32, as_expr(ELEMS))]
    steps: list[Launch | ExternCall] = []
    last = "in0"
    for number in range(kernels):
        result = f"tmp{number}"
        buffers.append(
            Buffer(result, BufferKind.TEMPORARY, DType.F32, as_expr(ELEMS), 0, as_expr(64 * number))
        )
        steps.append(Launch(number, (last, result)))
        last = result
        if number % 2:
            extern = f"ext{number}"
            buffers.append(Buffer(extern, BufferKind.EXTERN, DType.F32, as_expr(ELEMS)))
            steps.append(
                ExternCall(number, f"aten.{HOSTILE}", (_view(last),), (_view(extern),), True)
            )
            last = extern
    plan = Plan(
        target="cuda:sm_90a",
        symbols=(),
        buffers=tuple(buffers),
        arena_bytes=as_expr(64 * kernels),
        kernel_names=names,
        steps=tuple(steps),
        outputs=(_view(last),),
        kernel_keys=tuple(_digest(name) for name in names),
    )
    variants = tuple(
        (_variant(blobs, number, name, is_guarded=True), _variant(blobs, number, name))
        for number, name in enumerate(names)
    )
    stages = (
        blobs.stage("aten", _aten(kernels)),
        blobs.stage("prims", _prims(kernels)),
        blobs.stage("report", _report(plan)),
    )
    return ProgramFacts(
        _digest("program"), plan.target, plan, variants, stages, _manifest(), "miss", HOSTILE
    )


def triton_source(name: str, number: int) -> str:
    """Source as the emitter writes it; line 9 loads, lines 10 to 12 compute, line 13 stores."""
    return f"""# {name} for cuda:sm_90a: pointwise
# {HOSTILE}
import triton
import triton.language as tl


@triton.jit
def {name}(in0_ptr, out0_ptr, XBLOCK: tl.constexpr):
    in0_0 = tl.load(in0_ptr + xindex)
    literal_1 = {number}.5
    add_2 = in0_0 + literal_1
    exp_3 = tl.exp(add_2)
    tl.store(out0_ptr + xindex, exp_3)
"""


def ttir(name: str, filler: int = 0) -> str:
    """MLIR whose locations name lines of the source, one of them through another location."""
    lines = [f"    %{n} = arith.constant {n} : i32 loc(#loc1)" for n in range(filler)]
    return "\n".join(
        [
            f'#loc = loc("{name}.py":8:1)',
            "#loc1 = loc(unknown)",
            "module {",
            *lines,
            "    %in0_0 = tt.load %p : tensor<1xf32> loc(#loc2)",
            "    %add_2 = arith.addf %in0_0, %c : tensor<1xf32> loc(#loc4)",
            "} loc(#loc)",
            f'#loc2 = loc("{name}.py":9:13)',
            f'#loc3 = loc("{name}.py":11:13)',
            '#loc4 = loc("add_2"(#loc3))',
            "",
        ]
    )


def _variant(blobs: Blobs, number: int, name: str, is_guarded: bool = False) -> VariantFacts:
    guard = (GuardAtom(GuardSubject.PARAM_ADDRESS, 0, GuardOp.DIVISIBLE, 16),)
    return VariantFacts(
        key=_digest(name),
        binary="cubin",
        stages=(
            blobs.stage("kernel", kernel_text(name, number)),
            blobs.stage("triton", triton_source(name, number)),
            blobs.stage("ttir", ttir(name, 100 + number)),
            blobs.stage("ttgir", ttir(name, 200 + number)),
            blobs.stage("ptx", "\n".join(f"\tmov.u32 %r{n}, {n * number};" for n in range(500))),
            blobs.stage("cubin", bytes([number % 256]) * 2000),
        ),
        launch=LaunchFacts(name, (as_expr(8),), num_warps=4, extras=(("tiling", HOSTILE),)),
        guard=guard if is_guarded else (),
        stub_reason="",
        toolchain="cuda@" + "ab" * 32,
        cost_ms=1234.5,
        notes=(HOSTILE,),
        sandbox="seccomp",
    )


def kernel_text(name: str, number: int) -> str:
    """The loop kernel; line 7 is statement 0."""
    return f"""kernel {name}
# aten.add.Tensor <- captured node {number}: add
# {HOSTILE} <- captured node {number + 1}: exp
param in in0: f32[{ELEMS}]
param out out0: f32[{ELEMS}]
for d0 in {ELEMS}
  %0: f32 = load in0[d0]
  %1: f32 = {number}.5
  %2: f32 = add %0, %1
  %3: f32 = exp %2
  store out0[d0] = %3
"""


def _aten(kernels: int) -> str:
    quoted = HOSTILE.replace("\\", "\\\\").replace('"', '\\"')
    lines = ["graph aten 1", f'location "{quoted}"', f'%0: f32[{ELEMS}]@[1] = input "{quoted}"']
    for number in range(kernels + 1):
        lines.append(f"%{number + 1}: f32[{ELEMS}]@[1] = aten.add.Tensor(%{number}, 1.5) at 1")
    return "\n".join([*lines, f"return %{kernels}: f32[{ELEMS}]@[1]", ""])


def _prims(kernels: int) -> str:
    lines = ["graph prims 1", f"%0: f32[{ELEMS}] = input"]
    for number in range(kernels + 1):
        lines.append(f"%{number + 1}: f32[{ELEMS}] = add(%{number}, %{number}) from [{number}]")
    return "\n".join([*lines, f"return %{kernels}: f32[{ELEMS}]@[1]", ""])


def _report(plan: Plan) -> str:
    lines = [f"node 0 aten.add.Tensor: decomposed ({HOSTILE.replace(chr(10), '')})", HOSTILE]
    launches = [n for n, step in enumerate(plan.steps) if isinstance(step, Launch)]
    for number in launches:
        lines.append(
            f"step {number}: kernel x: aten.add.Tensor ({number}), <b>x</b> ({number + 1})"
        )
    lines += [
        f"not fused: steps {first} and {second}: {HOSTILE}" for first, second in pairwise(launches)
    ]
    return "\n".join(lines)


def _manifest() -> Manifest:
    return Manifest(
        namespace="default",
        space=Space.PROGRAMS,
        key=_digest("program"),
        variant_id=_digest(""),
        guard=(),
        tags=(f"model:{HOSTILE}", "op:aten.add.Tensor"),
        epoch=7,
        incarnation="cd" * 16,
        content=BlobRef(_digest("content"), 10),
        blobs=(),
        cost_ms=2500.0,
        not_after_s=1_800_000_000,
        key_id="0123456789abcdef",
        signature=b"s" * 64,
    )


def _view(buffer: str) -> TensorView:
    return TensorView(buffer, DType.F32, (as_expr(ELEMS),), (as_expr(1),), as_expr(0))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
