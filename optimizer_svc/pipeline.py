"""The optimizer's pipeline: passes that turn a Prims graph into loop kernels and a plan.

It is pure: the same graph and target give the same program, byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kernelfarm.errors import InternalError
from kernelfarm.ir.graph_ir import Graph
from kernelfarm.ir.product_choice import NodeChoice, ProductChoice
from kernelfarm.ir.program_ir import Program
from kernelfarm.ir.work_budget import phase
from kernelfarm.targets import TargetFacts
from optimizer_svc.passes.apply_hints import apply_hints
from optimizer_svc.passes.assign_layouts import assign_layouts
from optimizer_svc.passes.build_kernels import build_kernels
from optimizer_svc.passes.choose_attention import choose_attention
from optimizer_svc.passes.choose_attention_gradients import choose_attention_gradients
from optimizer_svc.passes.choose_batched_products import choose_batched_products
from optimizer_svc.passes.choose_convolutions import choose_convolutions
from optimizer_svc.passes.choose_depthwise import choose_depthwise
from optimizer_svc.passes.choose_layouts import choose_layouts
from optimizer_svc.passes.choose_materialized import choose_materialized
from optimizer_svc.passes.choose_products import choose_products
from optimizer_svc.passes.choose_splits import choose_splits
from optimizer_svc.passes.choose_winograd import choose_winograd
from optimizer_svc.passes.compute_attention import compute_attention
from optimizer_svc.passes.compute_attention_gradients import compute_attention_gradients
from optimizer_svc.passes.compute_batched_products import compute_batched_products
from optimizer_svc.passes.compute_convolutions import compute_convolutions
from optimizer_svc.passes.compute_depthwise import compute_depthwise
from optimizer_svc.passes.compute_in_place import compute_in_place
from optimizer_svc.passes.compute_products import compute_products
from optimizer_svc.passes.compute_winograd import compute_winograd
from optimizer_svc.passes.copy_scatter_bases import copy_scatter_bases
from optimizer_svc.passes.drop_roundings import drop_roundings
from optimizer_svc.passes.eliminate_common_subexpressions import eliminate_common_subexpressions
from optimizer_svc.passes.eliminate_dead_nodes import eliminate_dead_nodes
from optimizer_svc.passes.fuse_nests import fuse_nests
from optimizer_svc.passes.launch_in_blocks import launch_in_blocks
from optimizer_svc.passes.lay_out_gradients import lay_out_gradients
from optimizer_svc.passes.lower_nests import lower_nests
from optimizer_svc.passes.order_steps import order_steps
from optimizer_svc.passes.pad_products import pad_products
from optimizer_svc.passes.plan_program import plan_program
from optimizer_svc.passes.reduce_in_one_pass import reduce_in_one_pass
from optimizer_svc.passes.report_fusion import report_fusion
from optimizer_svc.passes.scatter_into_inputs import scatter_into_inputs
from optimizer_svc.passes.separate_biases import separate_biases
from optimizer_svc.passes.separate_outputs import separate_outputs
from optimizer_svc.passes.simplify_algebra import simplify_algebra
from optimizer_svc.passes.split_reductions import split_reductions
from optimizer_svc.passes.store_cats import store_cats
from optimizer_svc.passes.store_paddings import store_paddings
from optimizer_svc.passes.sum_one_hot import sum_one_hot
from optimizer_svc.passes.unroll_reductions import unroll_reductions
from optimizer_svc.passes.update_inputs import update_inputs
from optimizer_svc.stages import stage_texts


@dataclass(frozen=True, slots=True)
class Pass:
    """One step: `run` takes the facts that the pass `needs` and returns the one that it `gives`."""

    name: str
    run: Callable[..., Any]
    needs: tuple[str, ...]
    gives: str


PASSES: tuple[Pass, ...] = (
    Pass("scatter-into-inputs", scatter_into_inputs, ("graph",), "graph"),
    Pass("separate-biases", separate_biases, ("graph", "target"), "graph"),
    Pass("pad-products", pad_products, ("graph", "target"), "graph"),
    Pass("choose-attention", choose_attention, ("graph", "target"), "attention"),
    Pass("compute-attention", compute_attention, ("graph", "attention"), "graph"),
    Pass(
        "choose-attention-gradients",
        choose_attention_gradients,
        ("graph", "target"),
        "attention_gradients",
    ),
    Pass(
        "compute-attention-gradients",
        compute_attention_gradients,
        ("graph", "attention_gradients"),
        "graph",
    ),
    Pass(
        "choose-convolutions",
        choose_convolutions,
        ("graph", "target", "product_choice"),
        "convolutions",
    ),
    Pass("compute-convolutions", compute_convolutions, ("graph", "convolutions"), "graph"),
    Pass("choose-winograd", choose_winograd, ("graph", "target"), "winograd"),
    Pass("compute-winograd", compute_winograd, ("graph", "winograd"), "graph"),
    Pass(
        "choose-batched-products",
        choose_batched_products,
        ("graph", "target"),
        "batched_products",
    ),
    Pass(
        "compute-batched-products",
        compute_batched_products,
        ("graph", "batched_products"),
        "graph",
    ),
    Pass("sum-one-hot", sum_one_hot, ("graph",), "graph"),
    Pass("simplify-algebra", simplify_algebra, ("graph",), "graph"),
    Pass("eliminate-common-subexpressions", eliminate_common_subexpressions, ("graph",), "graph"),
    Pass(
        "choose-products",
        choose_products,
        ("graph", "target", "product_choice", "node_choices"),
        "products",
    ),
    Pass("unroll-reductions", unroll_reductions, ("graph", "target", "products"), "graph"),
    Pass("compute-products", compute_products, ("graph", "products"), "graph"),
    Pass("eliminate-dead-nodes", eliminate_dead_nodes, ("graph",), "graph"),
    Pass("choose-layouts", choose_layouts, ("graph", "convolutions", "target"), "layouts"),
    Pass("assign-layouts", assign_layouts, ("graph", "layouts"), "graph"),
    Pass("choose-depthwise", choose_depthwise, ("graph", "target"), "depthwise"),
    Pass("compute-depthwise", compute_depthwise, ("graph", "depthwise"), "graph"),
    Pass("choose-splits", choose_splits, ("graph", "target"), "splits"),
    Pass("split-reductions", split_reductions, ("graph", "splits"), "graph"),
    Pass("eliminate-dead-nodes", eliminate_dead_nodes, ("graph",), "graph"),
    Pass("lay-out-gradients", lay_out_gradients, ("graph", "target"), "graph"),
    Pass("separate-outputs", separate_outputs, ("graph",), "graph"),
    Pass("update-inputs", update_inputs, ("graph",), "graph"),
    Pass("copy-scatter-bases", copy_scatter_bases, ("graph",), "graph"),
    Pass(
        "choose-materialized",
        choose_materialized,
        (
            *("graph", "products", "attention", "convolutions", "winograd", "batched_products"),
            *("depthwise", "attention_gradients"),
        ),
        "chosen",
    ),
    Pass("store-paddings", store_paddings, ("chosen", "target"), "chosen"),
    Pass("store-cats", store_cats, ("chosen",), "chosen"),
    Pass("drop-roundings", drop_roundings, ("chosen",), "chosen"),
    Pass("lower-nests", lower_nests, ("chosen",), "nests"),
    Pass("fuse-nests", fuse_nests, ("chosen", "nests", "products"), "fusion"),
    Pass("order-steps", order_steps, ("chosen", "fusion", "target"), "fusion"),
    Pass("build-kernels", build_kernels, ("chosen", "fusion", "target"), "built"),
    Pass("apply-hints", apply_hints, ("chosen", "fusion", "built", "target"), "built"),
    Pass("reduce-in-one-pass", reduce_in_one_pass, ("built", "target"), "built"),
    Pass("compute-in-place", compute_in_place, ("chosen", "built"), "built"),
    Pass("launch-in-blocks", launch_in_blocks, ("chosen", "built", "target"), "built"),
    Pass("plan-program", plan_program, ("chosen", "built", "target"), "program"),
    Pass(
        "report-fusion",
        report_fusion,
        (
            "attention",
            "attention_gradients",
            "convolutions",
            "winograd",
            "batched_products",
            "products",
            "splits",
            "chosen",
            "layouts",
            "depthwise",
            "fusion",
            "built",
            "program",
            "target",
        ),
        "report",
    ),
)


def check_order(passes: tuple[Pass, ...]) -> None:
    """Checks that earlier passes give the facts that every pass needs.

    Raises:
        InternalError: no earlier pass gives a fact that a pass needs.
    """
    given = {"graph", "target", "product_choice", "node_choices"}
    for step in passes:
        missing = [name for name in step.needs if name not in given]
        if missing:
            raise InternalError(
                f"pass {step.name} needs {missing[0]!r}, which no earlier pass gives"
            )
        given.add(step.gives)


check_order(PASSES)  # at the start of the service, not at its first request


@dataclass(frozen=True, slots=True)
class OptimizeResult:
    """A program, and its stages as (name, text): prims, loops, plan, report."""

    program: Program
    stages: tuple[tuple[str, str], ...]


def given_facts(
    graph: Graph,
    target: TargetFacts,
    product_choice: ProductChoice = ProductChoice.AUTO,
    node_choices: Sequence[NodeChoice] = (),
) -> dict[str, Any]:
    """The facts that passes need and no pass gives."""
    return {
        "graph": graph.without_hints(),
        "target": target,
        "product_choice": product_choice,
        "node_choices": node_choices,
    }


def optimize(
    graph: Graph,
    target: TargetFacts,
    product_choice: ProductChoice = ProductChoice.AUTO,
    node_choices: Sequence[NodeChoice] = (),
) -> OptimizeResult:
    """The program of a Prims graph; `product_choice` says who computes products of matrices.

    `node_choices` say it of the products of single captured nodes, instead.

    Raises:
        InvalidGraphError: no input gives a size symbol that is used, or an index grows too large.
        WorkBudgetError: the request's budget of steps is spent.
        InternalError: the graph is no well-formed Prims graph.
    """
    facts = given_facts(graph, target, product_choice, node_choices)
    for step in PASSES:
        with phase(step.name):
            facts[step.gives] = step.run(*(facts[name] for name in step.needs))
    program: Program = facts["program"]
    with phase("stage texts"):
        return OptimizeResult(program, stage_texts(facts["graph"], program, facts["report"]))
