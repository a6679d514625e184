"""Divides a training graph into a forward and a backward graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from kernelfarm.client.capture.joint_graph import TargetOf
from kernelfarm.client.capture.recomputed_log_softmax import recompute_log_softmax
from kernelfarm.client.capture.recomputed_norms import recompute_norms
from kernelfarm.client.capture.saved_images import lay_out_saved_images
from kernelfarm.client.pytorch.private import min_cut_rematerialization_partition


def partition(joint: fx.GraphModule, inputs: Any, target_of: TargetOf, **options: Any) -> Any:
    """The forward and the backward graph of a joint graph; PyTorch's minimum cut divides it.

    The backward graph computes again what costs nothing there: pointwise work, which its kernels
    fuse with their own, never a product or a reduction. So less is saved for it.
    """
    _drop_detach(joint)
    recompute_norms(joint)
    recompute_log_softmax(joint)
    forward, backward = min_cut_rematerialization_partition(joint, inputs, **options)
    lay_out_saved_images(forward, backward, options["num_fwd_outputs"], target_of)
    return forward, backward


def _drop_detach(joint: fx.GraphModule) -> None:
    """Removes `detach` between operators, which autograd puts around saved results.

    It has no effect in a joint graph, but the minimum cut takes it for an operator that cannot be
    fused, and so would save both operand and result of each `tanh`.
    """
    for node in joint.graph.find_nodes(op="call_function", target=torch.ops.aten.detach.default):
        if all(user.op != "output" for user in node.users):
            node.replace_all_uses_with(node.args[0])
            joint.graph.erase_node(node)
