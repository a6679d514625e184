"""Small programs of the shapes that models have, each of which becomes one kernel or few."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Program:
    """A function of tensors, and the shapes of its operands; images are channels last if stated."""

    function: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]
    is_channels_last: bool = False
    classes: int = 0

    def operands(self, dtype: torch.dtype) -> list[Tensor]:
        """Random operands; the last one has class numbers if there are classes."""
        found = [torch.randn(shape, dtype=dtype) for shape in self.shapes]
        if self.is_channels_last:
            channels_last = torch.channels_last
            found = [x.to(memory_format=channels_last) if x.dim() == 4 else x for x in found]
        if self.classes:
            found.append(torch.randint(0, self.classes, self.shapes[0][:1]))
        return found


TOKENS, WIDTH, HIDDEN = 512, 768, 3072
_ROWS = ((TOKENS, WIDTH),)
_HIDDEN_ROWS = ((TOKENS, HIDDEN),)
_IMAGE = (1, 256, 56, 56)
_CHANNELS = (256,)


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.layer_norm(x, (x.shape[-1],), weight, bias)


def _batch_norm(x: Tensor, mean: Tensor, var: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.batch_norm(x, mean, var.abs(), weight, bias)


def _windows(x: Tensor) -> Tensor:
    """The shifted windows of a Swin transformer: 7 x 7 of 56 x 56 positions."""
    shifted = torch.roll(x, (-3, -3), (1, 2))
    return shifted.view(1, 8, 7, 8, 7, 96).permute(0, 1, 3, 2, 4, 5).reshape(-1, 49, 96)


def _rotary(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat((-second, first), -1) * sine


PROGRAMS = {
    "bias_gelu": Program(lambda x, b: functional.gelu(x + b), (*_HIDDEN_ROWS, (HIDDEN,))),
    "bias_gelu_tanh": Program(
        lambda x, b: functional.gelu(x + b, approximate="tanh"), (*_HIDDEN_ROWS, (HIDDEN,))
    ),
    "exp": Program(torch.exp, _HIDDEN_ROWS),
    "log": Program(lambda x: torch.log(x.abs()), _HIDDEN_ROWS),
    "tanh": Program(torch.tanh, _HIDDEN_ROWS),
    "erf": Program(torch.erf, _HIDDEN_ROWS),
    "sigmoid": Program(torch.sigmoid, _HIDDEN_ROWS),
    "silu": Program(functional.silu, _HIDDEN_ROWS),
    "mish": Program(functional.mish, _HIDDEN_ROWS),
    "softplus": Program(functional.softplus, _HIDDEN_ROWS),
    "sin": Program(torch.sin, _HIDDEN_ROWS),
    "cos": Program(torch.cos, _HIDDEN_ROWS),
    "pow": Program(lambda x: x.abs() ** 1.7, _HIDDEN_ROWS),
    "layer_norm": Program(_layer_norm, (*_ROWS, (WIDTH,), (WIDTH,))),
    "layer_norm_silu": Program(
        lambda *args: functional.silu(_layer_norm(*args)), (*_ROWS, (WIDTH,), (WIDTH,))
    ),
    "softmax": Program(lambda x: functional.softmax(x, -1), ((12 * 128, 128),)),
    "log_softmax": Program(lambda x: functional.log_softmax(x, -1), ((64, 50257),)),
    "cross_entropy": Program(functional.cross_entropy, ((64, 50257),), classes=50257),
    "rotary": Program(_rotary, ((32, TOKENS, 128), (TOKENS, 128), (TOKENS, 128))),
    "max_pool5": Program(lambda x: functional.max_pool2d(x, 5, 1, 2), ((1, 256, 40, 40),)),
    "max_pool5_last": Program(
        lambda x: functional.max_pool2d(x, 5, 1, 2), ((1, 256, 40, 40),), is_channels_last=True
    ),
    "max_pool3": Program(lambda x: functional.max_pool2d(x, 3, 2, 1), ((1, 64, 112, 112),)),
    "max_pool2": Program(lambda x: functional.max_pool2d(x, 2, 2), ((1, 64, 112, 112),)),
    "avg_pool3": Program(lambda x: functional.avg_pool2d(x, 3, 1, 1), ((1, 256, 40, 40),)),
    "mean_pool": Program(lambda x: x.mean((2, 3)), ((8, 1280, 7, 7),)),
    "mean_pool_last": Program(lambda x: x.mean((2, 3)), ((8, 1280, 7, 7),), is_channels_last=True),
    "transposing_add": Program(lambda x, y: x + y.t(), ((1024, 1024), (1024, 1024))),
    "transpose": Program(lambda x: x.t().contiguous(), ((1024, 768),)),
    "to_channels_last": Program(
        lambda x: x.contiguous(memory_format=torch.channels_last), (_IMAGE,)
    ),
    "to_channels_first": Program(
        lambda x: x.contiguous(memory_format=torch.contiguous_format),
        (_IMAGE,),
        is_channels_last=True,
    ),
    "heads_apart": Program(
        lambda x: x.view(TOKENS, 12, 64).transpose(0, 1).contiguous() * 2, _ROWS
    ),
    "keys_turned": Program(
        lambda x: x.view(TOKENS, 12, 64).permute(1, 2, 0).contiguous() * 2, _ROWS
    ),
    "windows": Program(_windows, ((1, 56, 56, 96),)),
    "column_sum": Program(lambda x: x.sum(0), ((4096, WIDTH),)),
    "column_sum_tall": Program(lambda x: x.sum(0), ((32768, 64),)),
    "row_sum": Program(lambda x: x.sum(-1), ((4096, WIDTH),)),
    "cat_channels": Program(
        lambda x, y, z: functional.silu(torch.cat((x, y, z), 1)),
        ((1, 128, 40, 40), (1, 128, 40, 40), (1, 256, 40, 40)),
    ),
    "cat_channels_last": Program(
        lambda x, y, z: functional.silu(torch.cat((x, y, z), 1)),
        ((1, 128, 40, 40), (1, 128, 40, 40), (1, 256, 40, 40)),
        is_channels_last=True,
    ),
    "upsample": Program(
        lambda x: functional.interpolate(x, scale_factor=2, mode="nearest"), ((1, 256, 20, 20),)
    ),
    "batch_norm_add": Program(
        lambda x, y, *rest: functional.relu(_batch_norm(x, *rest) + y),
        (_IMAGE, _IMAGE, *4 * (_CHANNELS,)),
    ),
    "batch_norm_add_last": Program(
        lambda x, y, *rest: functional.relu(_batch_norm(x, *rest) + y),
        (_IMAGE, _IMAGE, *4 * (_CHANNELS,)),
        is_channels_last=True,
    ),
    "batch_norm_silu": Program(
        lambda x, *rest: functional.silu(_batch_norm(x, *rest)), (_IMAGE, *4 * (_CHANNELS,))
    ),
    "batch_norm_silu_last": Program(
        lambda x, *rest: functional.silu(_batch_norm(x, *rest)),
        (_IMAGE, *4 * (_CHANNELS,)),
        is_channels_last=True,
    ),
}
