"""Steps that a template kernel computes: the plan launches it, and no kernel fuses with it.

In a graph, such a step is an extern node whose operator no framework has. Its results are memory of
the plan, like those of other kernels.
"""

from __future__ import annotations

from kernelfarm.ir.graph_ir import Node

ATTENTION_BACKWARD = "kernelfarm.attention_backward.default"
"""No template but the client's operator, of which some take the place: (grad, output, log-sum-exps,
query, key, value, mask) -> gradients of query, key, value and mask."""
ATTENTION_PARTS = "template.attention_parts"
"""(query, key, value, mask) -> weighted sums of values, largest scores and sums of weights, each
for every part of the keys; `optimizer_svc/kernels/attention_parts.py`."""
PAGED_ATTENTION_PARTS = "template.paged_attention_parts"
"""(query, key cache, value cache, key table, value table, mask) -> the same of `length` keys that
are in pages of caches, (pages, heads of keys, rows of a page, width), by tables (batch, pages)."""
FLASH_ATTENTION = "template.flash_attention"
"""(query, key, value, mask) -> weighted means of values, (batch, queries, heads, width), and
log-sum-exps if gradients need them;
`optimizer_svc/kernels/flash_attention.py`."""
PAGED_FLASH_ATTENTION = "template.paged_flash_attention"
"""(query, key cache, value cache, key table, value table, mask) -> the same of `length` keys that
are in pages, like those of `PAGED_ATTENTION_PARTS`."""
FLASH_GRADIENTS = "template.flash_gradients"
"""(query, key, value, output, grad, log-sum-exps, mask) -> gradients of queries before they are
scaled, (batch, queries, heads, width) in f32, of keys, of values, (batch, keys, heads, width), and
two numbers for each query; `optimizer_svc/kernels/flash_gradients.py`."""
FLASH_MASK_GRADIENT = "template.flash_mask_gradient"
"""(query, key, value, grad, two numbers for each query, mask) -> sums in parts, whose sum over the
first axis is the gradient of the mask; `optimizer_svc/kernels/flash_mask_gradient.py`."""
NIBBLE_PRODUCT = "template.nibble_product"
"""(x, words, scale, zero, bias) -> x @ weight.T + bias by a weight of integers of four bits, with
a zero point that is a tensor or an attribute; `optimizer_svc/kernels/nibble_product.py`."""
DEPTHWISE = "template.depthwise"
"""(image, weight, bias) -> the depthwise convolution of a channels-last image by a weight of shape
(down, across, channels); `optimizer_svc/kernels/depthwise.py`."""
DEPTHWISE_IMAGE = "template.depthwise_image_gradient"
"""(gradient, weight) -> the gradient of the image of such a convolution."""
DEPTHWISE_WEIGHT = "template.depthwise_weight_gradient"
"""(gradient, image) -> sums whose sum over the first axis is the gradient of such a weight."""
_TEMPLATES = (
    ATTENTION_PARTS,
    PAGED_ATTENTION_PARTS,
    FLASH_ATTENTION,
    PAGED_FLASH_ATTENTION,
    FLASH_GRADIENTS,
    FLASH_MASK_GRADIENT,
    NIBBLE_PRODUCT,
    DEPTHWISE,
    DEPTHWISE_IMAGE,
    DEPTHWISE_WEIGHT,
)


def is_template(node: Node | None) -> bool:
    """True for a node that a template kernel computes."""
    return node is not None and node.op == "extern" and node.attr("op") in _TEMPLATES


def launches_of(step: object) -> int:
    """The launches of a step of a program: gradients of attention take two."""
    if not isinstance(step, Node) or step.op != "extern":
        return 1
    return 2 if step.attr("op") == FLASH_GRADIENTS else 1
