"""How much one forward pass launches."""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path

import pytest

from examples.real_inputs import llama
from kernelfarm.client.compile_model import connect
from kernelfarm.ir.program_ir import Launch
from kernelfarm.targets import all_targets
from tests.e2e.compiled_inputs import Everything
from tests.support.launches import Launches, inductor_launches, launches_of_plans, programs_of
from tests.support.third_party import need

INDUCTORS = 15
"""Inductor's launches of one pass of the Llama with torch 2.13.0, as the slow test counts them."""
PRODUCTS = 15
"""Matrix products of one pass: 7 in each of 2 layers, and the logits."""


@pytest.mark.parametrize("target", all_targets())
def test_layer_norm_and_silu_are_one_kernel_that_three_layers_share(
    target: str, everything: Everything
) -> None:
    plan = everything.programs["reference", target].plan
    assert len(plan.kernel_names) == 1
    kinds = ["kernel" if isinstance(step, Launch) else step.op for step in plan.steps]
    assert [kind == "kernel" for kind in kinds] == [False, True] * 3, kinds
    assert all(s.is_contraction for s in plan.steps if not isinstance(s, Launch))


def test_the_printed_source_of_that_kernel_names_the_norm_and_the_activation(
    everything: Everything,
) -> None:
    *_, general = everything.binaries("reference", "cuda:sm_90a")
    source = general.contents["triton"].decode()
    assert source.count("def fused_") == 1
    for part in ("tl.sum(", "tl.rsqrt(", "_exp(", "XBLOCK: tl.constexpr"):
        assert part in source, source
    nodes = everything.captured("reference", "cuda:sm_90a").nodes
    commented = re.findall(r"# (\S+) <- captured node (\d+): \w+", source)
    assert [op for op, _ in commented] == ["aten.native_layer_norm", "aten.silu"], source
    assert [nodes[int(n)].op.removesuffix(".default") for _, n in commented] == [
        op for op, _ in commented
    ]


@pytest.mark.parametrize("target", all_targets())
def test_h_is_at_most_two_kernels(target: str, everything: Everything) -> None:
    plan = everything.programs["h", target].plan
    assert 1 <= len(plan.steps) <= 2
    assert all(isinstance(step, Launch) for step in plan.steps)


@pytest.mark.slow  # Inductor compiles it by g++ for most of a minute
@pytest.mark.third_party
def test_llama_launches_no_more_than_with_inductor(endpoint: str) -> None:
    need("g++")  # Inductor compiles its wrapper and kernels with it, against Python's headers
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        pytest.skip("NOT RUN: Python.h (Debian package python3-dev)")
    ours, theirs = llama_launches(endpoint), inductor_launches("llama")
    # Both arms ran the whole model.
    assert sum(n for op, n in theirs.contractions.items() if "mm" in op) == PRODUCTS
    assert theirs.total == INDUCTORS
    assert 0 < ours.total <= theirs.total, (ours, theirs)


def llama_launches(endpoint: str) -> Launches:
    """What our plan of the Llama launches; it is the whole model's."""
    ours = launches_of_plans(programs_of(llama(), endpoint))
    assert sum(n for op, n in ours.contractions.items() if "mm" in op) == PRODUCTS
    return ours


def test_equal_kernels_of_layers_are_compiled_once(everything: Everything) -> None:
    plan = everything.programs["llama", "cuda:sm_90a"].plan
    launched = [step.kernel for step in plan.steps if isinstance(step, Launch)]
    assert len(set(plan.kernel_keys)) == len(plan.kernel_names) < len(launched)
    with connect(everything.endpoint) as client:
        found = client.lookup(everything.programs["llama", "cuda:sm_90a"].key)
    assert found.plan == plan
