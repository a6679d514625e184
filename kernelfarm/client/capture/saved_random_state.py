"""Random operators that AOT Autograd runs twice with one state of the generator.

An activation checkpoint computes again in the backward pass what the forward pass drew. AOT
Autograd wraps such an operator: forward, `run_and_save_rng_state` gives the state before the draw
beside the results; backward, `run_with_rng_state` draws from that state. Both stay steps of the
framework, so that both passes see the same numbers.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import detect_fake_mode
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state
from torch._subclasses.fake_tensor import FakeTensorMode

_WRAPPERS = frozenset({run_and_save_rng_state, run_with_rng_state})


def is_with_random_state(target: Any) -> bool:
    """True for the operators that save a generator's state, or draw from a saved one."""
    return target in _WRAPPERS


def note_random_results(graph: fx.Graph) -> None:
    """Notes on each such node of a graph what it gives.

    AOT Autograd leaves that out, and gives the state a size of its own, which no input tells.
    """
    for node in graph.nodes:
        if node.op == "call_function" and is_with_random_state(node.target):
            _note_results(node)


def _note_results(node: fx.Node) -> None:
    is_saved = node.target is run_and_save_rng_state
    wrapped: Any
    wrapped, *args = node.args if is_saved else node.args[1:]
    values, named = fx.map_arg((args, dict(node.kwargs)), lambda used: used.meta["val"])
    mode = detect_fake_mode(values) or FakeTensorMode()
    with mode, enable_python_dispatcher():
        made = wrapped(*values, **named)
    if is_saved:
        state = torch.get_rng_state()
        made = (state, made)
        for user in node.users:
            if user.target is operator.getitem and user.args[1] == 0:
                user.meta["val"] = state
    node.meta["val"] = made


def flat_results(value: Any) -> list[Any]:
    """Results one after the other: those of the wrapped operator may be a tuple in a tuple."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [leaf for item in value for leaf in flat_results(item)]


def flat_item(node: fx.Node, values: Sequence[int | None], index: int) -> tuple[int | None, ...]:
    """The values of one item of a node's results, or of the tuple that the item is."""
    before = node.meta["val"][:index]
    first = sum(len(flat_results(item)) for item in before)
    return tuple(values[first : first + len(flat_results(node.meta["val"][index]))])
