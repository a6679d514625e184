"""Runs a case on a GPU beside eager, and says what is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from frontend_svc.decompose.pipeline import decompose_to_prims
from kernelfarm.client.runtime.seeds import draw_seeds
from kernelfarm.ir.graph_ir import seed_nodes
from kernelfarm.ir.interpret import run_graph
from tests.gpu.captures import captured_of
from tests.gpu.case import Case, Tensors, called, on
from tests.support.judge import judge
from tests.support.single_operator import to_numpy, to_torch


def problem_of(case: Case, device: torch.device, options: dict[str, Any]) -> str:
    """What is wrong with a case; empty if it is right.

    Raises:
        KernelfarmError: the case's program is not to be had.
    """
    torch._dynamo.reset()
    run = torch.compile(case.function, backend="kernelfarm", dynamic=case.dynamic, options=options)
    for number, make in enumerate(case.arguments):
        given = make()
        args = tuple(on(device, tensor, case.offset) for tensor in given)
        state = _generator(device).get_state()
        found = called(case, run, args)
        if case.is_random:
            problem = _random_problem(case, number, found[0], device, state)
        else:
            problem = problem_with(case, given, found, device)
        if problem:
            return f"arguments {number}: {problem}"
    return ""


def problem_with(case: Case, given: Tensors, found: Any, device: torch.device) -> str:
    """What is wrong with what a call gave; empty if it is right.

    Judged by eager on this device, or else on the CPU: they differ where neither is wrong.
    """
    found = _on_cpu(found)
    args = tuple(on(device, tensor, case.offset) for tensor in given)
    eager = _on_cpu(called(case, case.function, args))
    wide = tuple(t.double() if t.is_floating_point() else t.clone() for t in given)
    exact = None if case.is_exact else _exact(case, wide)
    summed = () if case.has_products else given
    problem = judge(found, eager, exact, summed).problem
    if not problem:
        return ""
    copies = tuple(tensor.clone() for tensor in given)
    eager = called(case, case.function, copies)
    return problem if judge(found, eager, exact, summed).problem else ""


def _exact(case: Case, wide: Tensors) -> Any:
    try:
        return called(case, case.function, wide)
    except RuntimeError:  # a function of some types alone
        return None


def _random_problem(
    case: Case, number: int, found: Any, device: torch.device, state: torch.Tensor
) -> str:
    """Judged by what NumPy makes of the graph and of the seeds that were drawn."""
    args = case.arguments[number]()
    alone = Case(case.name, case.function, (lambda: args,))
    (captured,) = captured_of(alone, torch.device("cpu"))
    graph = decompose_to_prims(captured.graph).graph
    _generator(device).set_state(state)
    drawn = draw_seeds(len(seed_nodes(graph)), device)
    inputs = [to_numpy(args[source]) for source in captured.sources if isinstance(source, int)]
    expected = run_graph(graph, inputs, None, [int(seed) for seed in drawn])
    reference = tuple(to_torch(np.asarray(array)) for array in expected)
    flat = tuple(pytree.tree_leaves(_on_cpu(found)))
    if case.is_exact and not all(map(torch.equal, flat, reference)):
        return "other bits than NumPy's"
    return judge(flat, reference, None, args).problem


def _generator(device: torch.device) -> torch.Generator:
    """The device's default generator, from which seeds are drawn."""
    return torch.cuda.default_generators[0] if device.type == "cuda" else torch.default_generator


def _on_cpu(value: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, torch.Tensor.cpu, value)
