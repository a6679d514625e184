"""Linear layers whose weights are stored as integers or 8-bit floats, in fewer bytes than bf16.

The layers are plain PyTorch. A compiler sees integers, a conversion, scales and a product, and may
compute them together, so that no memory holds the weight.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

GROUP = 128
"""Terms of a row that share a scale and a zero point, if integers have four bits; sides of a block
of 8-bit floats that share a scale."""


class Int8Linear(nn.Module):
    """A linear layer with integers of eight bits, and a scale of each row.

    Shapes: x: (..., k); weight: (n, k); scale: (n,); bias: (n,)
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        weight = layer.weight.detach().float()
        scale = weight.abs().amax(1).clamp(min=1e-8) / 127
        self.register_buffer("weight", (weight / scale[:, None]).round().to(torch.int8))
        self.register_buffer("scale", scale.to(layer.weight.dtype))
        self.bias = layer.bias

    def forward(self, x: Tensor) -> Tensor:
        """Shapes: (..., k) -> (..., n)."""
        weight = self.weight.to(x.dtype) * self.scale[:, None]
        return functional.linear(x, weight, self.bias)


class DynamicInt8Linear(nn.Module):
    """A linear layer of integers of eight bits, which also makes integers of each row of x.

    A row's scale is that of its largest magnitude. Products are exact sums of integers.

    Shapes: x: (..., k); weight: (n, k); scale: (n,); bias: (n,)
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        weight = layer.weight.detach().float()
        scale = weight.abs().amax(1).clamp(min=1e-8) / 127
        self.register_buffer("weight", (weight / scale[:, None]).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.bias = layer.bias

    def forward(self, x: Tensor) -> Tensor:
        """Shapes: (..., k) -> (..., n)."""
        rows = x.flatten(0, -2)
        y = dynamic_int8_linear(rows, self.weight, self.scale, self.bias)
        return y.unflatten(0, x.shape[:-1])


def dynamic_int8_linear(
    x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None = None
) -> Tensor:
    """The layer of `DynamicInt8Linear`, in the type of x.

    Shapes: x: (m, k); weight: (n, k) of i8; scale: (n,) of f32; bias: (n,); result: (m, n)
    """
    wide = x.float()
    x_scale = wide.abs().amax(1, keepdim=True).clamp(min=1e-8) / 127
    integers = (wide / x_scale).round().clamp(-128, 127).to(torch.int8)
    y = torch._int_mm(integers, weight.t()) * x_scale * scale
    return (y if bias is None else y + bias).to(x.dtype)


class Float8Linear(nn.Module):
    """A linear layer with floats of eight bits, and a scale of each `GROUP` x `GROUP` block.

    Checkpoints like DeepSeek's store weights so.

    Shapes: x: (..., k); weight: (n, k); scale: (ceil(n / GROUP), ceil(k / GROUP)); bias: (n,)
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        weight = layer.weight.detach().float()
        rows, terms = (-(-side // GROUP) for side in weight.shape)
        n, k = weight.shape
        padded = functional.pad(weight, (0, terms * GROUP - k, 0, rows * GROUP - n))
        blocks = padded.reshape(rows, GROUP, terms, GROUP)
        largest = torch.finfo(torch.float8_e4m3fn).max
        scale = blocks.abs().amax((1, 3)).clamp(min=1e-8) / largest
        self.register_buffer(
            "weight", (weight / spread_blocks(scale, n, k)).to(torch.float8_e4m3fn)
        )
        self.register_buffer("scale", scale)
        self.bias = layer.bias

    def forward(self, x: Tensor) -> Tensor:
        """Shapes: (..., k) -> (..., n)."""
        return block_scaled_linear(x, self.weight, self.scale, self.bias)


def spread_blocks(scale: Tensor, n: int, k: int) -> Tensor:
    """The scale of each element of a weight (n, k), by those of its blocks."""
    return scale.repeat_interleave(GROUP, 0)[:n].repeat_interleave(GROUP, 1)[:, :k]


def block_scaled_linear(
    x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None = None
) -> Tensor:
    """The layer of `Float8Linear`; the weight is computed in f32 and rounded to the type of x.

    Shapes: x: (..., k); weight: (n, k) of float8; scale: blocks, f32; bias: (n,); result: (..., n)
    """
    wide = weight.float() * spread_blocks(scale, *weight.shape)
    return functional.linear(x, wide.to(x.dtype), bias)


class Int4Linear(nn.Module):
    """A linear layer with integers of four bits, two neighbours in a byte.

    Shapes: x: (..., k); packed: (n, k / 2); scale and zero: (n, k / GROUP); bias: (n,)
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        groups = layer.weight.detach().float().unflatten(1, (-1, GROUP))
        low, high = groups.amin(2, keepdim=True), groups.amax(2, keepdim=True)
        scale = (high - low).clamp(min=1e-8) / 15
        zero = (-low / scale).round()
        integers = (groups / scale + zero).round().clamp(0, 15).to(torch.uint8).flatten(1)
        self.register_buffer("packed", integers[:, 0::2] | integers[:, 1::2] << 4)
        self.register_buffer("scale", scale.squeeze(2).to(layer.weight.dtype))
        self.register_buffer("zero", zero.squeeze(2).to(layer.weight.dtype))
        self.bias = layer.bias

    def forward(self, x: Tensor) -> Tensor:
        """Shapes: (..., k) -> (..., n)."""
        integers = torch.stack((self.packed & 15, self.packed >> 4), -1)
        groups = integers.reshape(*self.scale.shape, GROUP).to(x.dtype)
        weight = (groups - self.zero[:, :, None]) * self.scale[:, :, None]
        return functional.linear(x, weight.flatten(1), self.bias)


def with_integer_weights(model: nn.Module, bits: int) -> nn.Module:
    """The model, with integers of 8 or 4 bits in its linear layers of whole groups; in place."""
    made = {8: Int8Linear, 4: Int4Linear}[bits]
    for module in [*model.modules()]:
        for name, child in module.named_children():
            if isinstance(child, nn.Linear) and child.in_features % GROUP == 0:
                setattr(module, name, made(child))
    return model
