"""The table is closed: each functional operator of PyTorch decomposes or is in one extern group."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from frontend_svc.decompose.pipeline import decompose_to_prims
from frontend_svc.decompose.report import NodeOutcome
from frontend_svc.operators import DECOMPOSED, EXTERN_CHECKS, EXTERN_GROUPS, extern_group_of
from kernelfarm.ir.graph_ir import Ref
from tests.frontend_svc.operators.public_operators import IN_PUBLIC_GRAPHS
from tests.support.captured_graphs import one_node_graph
from tests.support.small_graphs import tensor

MOST_GROUPS = 60


def functional_operators() -> Iterator[str]:
    """Operators that functional capture can produce: with a tensor result, and no changed argument.

    Operators with a composite kernel that is implicitly differentiable are left out: tracing
    replaces them by the operators that they call.
    """
    is_registered = torch._C._dispatch_has_kernel_for_dispatch_key
    for registered in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = registered.partition("::")
        name, _, overload = rest.partition(".")
        if namespace != "aten" or is_registered(registered, "CompositeImplicitAutograd"):
            continue
        schema = torch._C._get_schema(f"aten::{name}", overload)
        if any("Tensor" in str(r.type) for r in schema.returns) and not schema.is_mutable:
            yield f"aten.{name}.{overload or 'default'}"


FUNCTIONAL = sorted(functional_operators())


def groups_of(operator: str) -> list[str]:
    return [group.name for group in EXTERN_GROUPS if group.covers(operator)]


def test_the_registry_is_not_empty() -> None:
    assert len(FUNCTIONAL) > 1000


def test_each_functional_operator_decomposes_or_is_in_one_group() -> None:
    extern = {name: groups_of(name) for name in FUNCTIONAL if name not in DECOMPOSED}
    assert {name: found for name, found in extern.items() if len(found) != 1} == {}


def test_operators_of_public_models_are_in_the_table() -> None:
    unknown = [n for n in IN_PUBLIC_GRAPHS if n not in DECOMPOSED and not groups_of(n)]
    assert unknown == []


def test_groups_are_few_and_different() -> None:
    names = [group.name for group in EXTERN_GROUPS]
    assert len(set(names)) == len(names) <= MOST_GROUPS


def test_each_pattern_names_an_operator_of_this_torch() -> None:
    known = [n.replace("::", ".", 1) for n in torch._C._dispatch_get_all_op_names()]
    known = [n if n.count(".") > 1 else f"{n}.default" for n in known]
    aten = [(g, p) for g in EXTERN_GROUPS for p in g.patterns if p.startswith("aten.")]
    for group, pattern in aten:
        single = type(group)(group.name, group.reason, (pattern,))
        assert any(map(single.covers, known)), f"{group.name}: {pattern}"


def test_a_group_has_operators_that_no_decomposition_covers() -> None:
    extern = [name for name in FUNCTIONAL if name not in DECOMPOSED]
    for group in EXTERN_GROUPS:
        if any(pattern.startswith("aten.") for pattern in group.patterns):
            is_used = any(map(group.covers, extern)) or group.name == "running statistics"
            assert is_used, f"{group.name}: every operator of it decomposes"


def test_checked_operators_are_extern() -> None:
    for name in EXTERN_CHECKS:
        assert name not in DECOMPOSED
        assert extern_group_of(name) is not None


@pytest.mark.parametrize(
    ("operator", "said"),
    [
        ("aten._linalg_svd.default", "decomposition of matrices: the framework's library"),
        ("aten.convolution_backward.default", "convolution: the framework's library"),
        ("mylib.magic.default", "not in the table: a custom operator"),
    ],
)
def test_the_report_states_the_reason_of_the_group(operator: str, said: str) -> None:
    graph = one_node_graph(operator, [tensor(4, 4)], [Ref(0)], tensor(4, 4))
    (report,) = decompose_to_prims(graph).report
    assert report.outcome is NodeOutcome.EXTERN
    assert report.detail.startswith(said)
