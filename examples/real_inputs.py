"""The models that demo, tests and benchmarks compile; they are built from code, without downloads.

Weights are random with a fixed seed. Shapes are those of the project's acceptance list.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

TOKENS = 64
VOCABULARY = 1000


@dataclass(frozen=True)
class RealInput:
    """A model with its arguments, ready to call as `model(*args)`.

    `dynamic` is the argument of `torch.compile` for which the model stands.
    """

    name: str
    model: Callable[..., Any]
    args: tuple[torch.Tensor, ...]
    dynamic: bool | None = None

    def half(self) -> RealInput:
        """The model and its arguments in float16, as for accelerators."""
        model = self.model.half() if isinstance(self.model, nn.Module) else self.model
        args = tuple(a.half() if a.is_floating_point() else a for a in self.args)
        return RealInput(self.name, model, args, self.dynamic)


class ReferenceModel(nn.Module):
    """Linear(128, 128), LayerNorm and SiLU, three times."""

    def __init__(self, hidden: int = 128, depth: int = 3) -> None:
        super().__init__()
        blocks = [
            (nn.Linear(hidden, hidden), nn.LayerNorm(hidden), nn.SiLU()) for _ in range(depth)
        ]
        self.layers = nn.Sequential(*(layer for block in blocks for layer in block))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: x: (batch, hidden) -> (batch, hidden)."""
        return self.layers(x)


def f(x: torch.Tensor) -> torch.Tensor:
    """A function that is split into sub-graphs at a branch that depends on data."""
    a = x * 2
    b = a + torch.from_numpy(np.random.randn(5))
    return b.sin().sin() if b.sum() > 0 else b.cos().cos()


def g(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A function that is split into sub-graphs at a branch that depends on data."""
    x = (a + b) / 2.0
    return x * -1.0 if x.sum() < 0 else x * 2


def h(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Elementwise operations, a reduction, a softmax, and elementwise operations."""
    x = a.ceil() + b.floor()
    y = x.sum(dim=-1)
    return (y.softmax(dim=-1) * 10) ** 3


def reference_model() -> RealInput:
    """The reference model on a batch of 32."""
    torch.manual_seed(0)
    return RealInput("reference", ReferenceModel().eval(), (torch.randn(32, 128),))


def function_h() -> RealInput:
    """`h` on two matrices of 64 x 128."""
    torch.manual_seed(0)
    return RealInput("h", h, (torch.randn(64, 128), torch.randn(64, 128)))


class TensorsOnly(nn.Module):
    """A transformers model with tensors as arguments and one as result, which can be exported."""

    def __init__(self, model: nn.Module, result: str, **options: Any) -> None:
        super().__init__()
        self.model, self.result, self.options = model, result, options

    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Shapes: ids, mask: (1, tokens) -> (1, tokens, width)."""
        outputs = self.model(input_ids=ids, attention_mask=mask, **self.options)
        return getattr(outputs, self.result)


def llama() -> RealInput:
    """A Llama of 2 layers, with 4 heads that share 2 key-value heads, on 64 tokens."""
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415 (takes seconds)

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=128,
        intermediate_size=344,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCABULARY,
        max_position_embeddings=128,
    )
    model = LlamaForCausalLM(config).eval()
    ids = torch.randint(0, VOCABULARY, (1, TOKENS))
    return RealInput("llama", TensorsOnly(model, "logits", use_cache=False).eval(), (ids,))


def bert() -> RealInput:
    """A BERT of 2 layers and 4 heads on 64 tokens."""
    from transformers import BertConfig, BertModel  # noqa: PLC0415 (takes seconds)

    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=512,
        vocab_size=VOCABULARY,
    )
    model = BertModel(config).eval()
    ids = torch.randint(0, VOCABULARY, (1, TOKENS))
    mask = torch.ones(1, TOKENS, dtype=torch.long)
    return RealInput("bert", TensorsOnly(model, "last_hidden_state").eval(), (ids, mask))


WHOLE_GRAPHS: dict[str, Callable[[], RealInput]] = {
    "reference": reference_model,
    "h": function_h,
    "llama": llama,
    "bert": bert,
}
"""Inputs that capture as one graph, by name."""
