"""Random operators that AOT Autograd runs twice with the same generator state.

An activation checkpoint recomputes random numbers of the forward pass in the backward pass. AOT
Autograd wraps such an operator: in the forward pass, `run_and_save_rng_state` returns the state
before the draw beside the results; in the backward pass, `run_with_rng_state` draws from that
state. Both remain extern steps, so that both passes get the same numbers.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from kernelfarm.client.pytorch.private import (
    FakeTensorMode,
    detect_fake_mode,
    enable_python_dispatcher,
    run_and_save_rng_state,
    run_with_rng_state,
)

_WRAPPERS = frozenset({run_and_save_rng_state, run_with_rng_state})


def is_with_random_state(target: Any) -> bool:
    """True for the operators that save a generator's state, or draw from a saved one."""
    return target in _WRAPPERS


def note_random_results(graph: fx.Graph) -> None:
    """Records the results of each such node in the node's metadata.

    AOT Autograd does not record them, and gives the state a symbolic size that no input has.
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
    """The results as a flat list: the wrapped operator's results may be a nested tuple."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [leaf for item in value for leaf in flat_results(item)]


def flat_item(node: fx.Node, values: Sequence[int | None], index: int) -> tuple[int | None, ...]:
    """The flat values of one item of a node's results; the item may be a tuple."""
    before = node.meta["val"][:index]
    first = sum(len(flat_results(item)) for item in before)
    return tuple(values[first : first + len(flat_results(node.meta["val"][index]))])
