"""Models for training tests, and their batches."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)

STEPS = 20

Batch = tuple[torch.Tensor, torch.Tensor]


class Block(nn.Module):
    """Attention and a gated sum with pre-normalization; `dropout` is a probability."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, nn.Dropout(dropout)
        self.norm, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        layers = nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(dropout)
        self.feed = nn.Sequential(*layers, nn.Linear(2 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm(x)).chunk(3, -1)
        q, k, v = (p.view(batch, length, self.heads, -1).transpose(1, 2) for p in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).reshape(batch, length, width)))
        return x + self.feed(self.norm_2(x))


class Transformer(nn.Module):
    """Two blocks that classify sequences of up to 12 of 50 words."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 32)
        self.places = nn.Parameter(torch.randn(12, 32) * 0.1)
        self.blocks = nn.Sequential(Block(32, 4, dropout), Block(32, 4, dropout))
        self.norm, self.classes = nn.LayerNorm(32), nn.Linear(32, 7)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words) + self.places[: words.shape[1]]
        return self.classes(self.norm(self.blocks(x)).mean(1))


def sentences(step: int) -> Batch:
    generator = torch.Generator().manual_seed(step)
    words = torch.randint(0, 50, (4, 12), generator=generator)
    return words, torch.randint(0, 7, (4,), generator=generator)
