"""Lays out the images that a training step saves as the chip's convolutions take them.

PyTorch states eager's strides for what a forward graph saves for its backward graph. Only these two
graphs see it, so its layout is free: where the target's convolutions of 16 bits save bytes channels
last, an image is cloned channels last at the end of the forward graph. A program stores it so at
once; only without one is the clone a copy.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from kernelfarm.client.capture.joint_graph import GraphWriter, TargetOf, is_pointwise, value_of
from kernelfarm.client.pytorch.private import statically_known_true
from kernelfarm.targets import all_targets

_log = logging.getLogger("kernelfarm.client")
_ATEN = torch.ops.aten
_IMAGE_RANK = 4
_CONVOLUTION = _ATEN.convolution.default
_NARROW = (torch.float16, torch.bfloat16)
_OF_WINDOWS = (torch.bool, torch.int8, torch.int64)
"""Where the maximum of a window is, and the like."""
_KEEPING = {
    _ATEN.native_batch_norm.default,
    _ATEN._native_batch_norm_legit.default,
    _ATEN._native_batch_norm_legit_functional.default,
    _ATEN._batch_norm_with_update_functional.default,
    _ATEN.cudnn_batch_norm.default,
    _ATEN.native_group_norm.default,
    _ATEN.max_pool2d_with_indices.default,
    _ATEN.avg_pool2d.default,
    _ATEN.upsample_nearest2d.vec,
    _ATEN.upsample_bilinear2d.vec,
    _ATEN.constant_pad_nd.default,
    _ATEN.cat.default,
    operator.getitem,
}
"""Operators that keep the axes of an image, besides pointwise ones."""
_READING = {
    _ATEN.convolution_backward.default,
    _ATEN.native_batch_norm_backward.default,
    _ATEN.batch_norm_backward.default,
    _ATEN.cudnn_batch_norm_backward.default,
    _ATEN.native_group_norm_backward.default,
    _ATEN.max_pool2d_with_indices_backward.default,
    _ATEN.avg_pool2d_backward.default,
}
"""Operators of backward graphs that read images in each layout, besides pointwise ones."""


def lay_out_saved_images(
    forward: fx.GraphModule, backward: fx.GraphModule, results: int, target_of: TargetOf
) -> None:
    """Has a forward graph return the images behind its `results` channels last, in place.

    Nothing changes if the backward graph could not run with them as it was captured.
    """
    found = _saved(forward, backward, results)
    images = _images(forward.graph) if found else set()
    chosen = [
        (node, read)
        for node, read in found
        if node in images and _is_free(node, read) and _gains(value_of(node), target_of)
    ]
    if not chosen:
        return
    writer = GraphWriter(forward.graph)
    output = forward.graph.output_node()
    before = [value_of(read) for _, read in chosen]
    clones: dict[fx.Node, fx.Node] = {}
    with forward.graph.inserting_before(output):
        for node, read in chosen:
            clone = writer.add(_ATEN.clone.default, node, memory_format=torch.channels_last)
            clones[node] = clone
            read.meta["val"] = value_of(clone)
    if not _runs(backward):
        for (node, read), value in zip(chosen, before, strict=True):
            read.meta["val"] = value
            forward.graph.erase_node(clones[node])
        return
    items = output.args[0]
    assert isinstance(items, Sequence)
    saved = [clones.get(item, item) for item in items[results:]]  # type: ignore[arg-type]  # nodes, or None
    output.args = ((*items[:results], *saved),)
    forward.recompile()


def _saved(
    forward: fx.GraphModule, backward: fx.GraphModule, results: int
) -> list[tuple[fx.Node, fx.Node]]:
    """What only the backward graph sees: the node that makes it, and the argument that has it."""
    items = forward.graph.output_node().args[0]
    assert isinstance(items, Sequence)
    arguments = {str(node.target): node for node in backward.graph.find_nodes(op="placeholder")}
    seen = {item for item in items[:results] if isinstance(item, fx.Node)}
    return [
        (item, arguments[item.name])
        for item in items[results:]
        if isinstance(item, fx.Node) and item.name in arguments and item not in seen
    ]


def _images(graph: fx.Graph) -> set[fx.Node]:
    """The images that convolutions of 16 bits read and give, and those of the same axes."""
    neighbours: dict[fx.Node, list[fx.Node]] = {}
    pending: list[fx.Node] = []
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if node.target is _CONVOLUTION and _is_narrow_image(value_of(node)):
            image = node.args[0]
            assert isinstance(image, fx.Node)
            pending += [node, image]
        elif node.target in _KEEPING or is_pointwise(node):
            for source in filter(_keeps, node.all_input_nodes):
                neighbours.setdefault(node, []).append(source)
                neighbours.setdefault(source, []).append(node)
    found: set[fx.Node] = set()
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending += neighbours.get(node, ())
    return found


def _keeps(node: fx.Node) -> bool:
    """True for an image, and for an operator with several results of which one may be an image."""
    value = value_of(node) if "val" in node.meta else None
    return _is_image(value) or isinstance(value, tuple | list)


def _is_narrow_image(value: Any) -> bool:
    return _is_image(value) and value.dtype in _NARROW


def _is_image(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() == _IMAGE_RANK


def _is_free(node: fx.Node, read: fx.Node) -> bool:
    """True for an image in eager's layout that nothing of the backward graph reads as a view."""
    value = value_of(node)
    if node.op != "call_function" or not _is_image(value):
        return False
    _, channels, height, width = value.shape
    pixels = height * width
    row_major = (channels * pixels, pixels, width, 1)
    known = [step == other for step, other in zip(value.stride(), row_major, strict=True)]
    known += [channels != 1, pixels != 1]
    if not all(map(statically_known_true, known)):
        return False
    return all(user.target in _READING or is_pointwise(user) for user in read.users)


def _gains(value: torch.Tensor, target_of: TargetOf) -> bool:
    """True if the target's convolutions of 16 bits, and their gradients, save bytes by it."""
    if value.dtype not in (*_NARROW, *_OF_WINDOWS):
        return False
    known = all_targets().get(target_of(value.device) or "")
    facts = None if known is None else known.channels_last
    return (
        facts is not None and facts.has_gradients and dict(facts.narrow_saves).get("dense", 0) > 0
    )


def _runs(module: fx.GraphModule) -> bool:
    """True if each operator takes the strides that its operands have now; nothing is computed."""
    values: dict[fx.Node, Any] = {}
    for node in module.graph.nodes:
        if node.op == "call_function":
            args = fx.node.map_arg(node.args, values.__getitem__)
            kwargs = fx.node.map_arg(node.kwargs, values.__getitem__)
            try:
                values[node] = node.target(*args, **kwargs)
            # A view that these strides do not have; users' operators may raise anything.
            except Exception as error:
                _log.debug("kernelfarm: saved images keep their layout: %s: %s", node, error)
                return False
        elif node.op == "get_attr":
            values[node] = node.meta.get("val", getattr(module, str(node.target), None))
        elif node.op != "output":
            values[node] = node.meta.get("val")
    return True
