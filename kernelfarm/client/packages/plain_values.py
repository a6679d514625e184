"""Plain values as text, by which two machines compare them."""

from __future__ import annotations

import hashlib
from typing import Any

import torch

NOT_PLAIN = "?"
"""The text of a value that is not plain."""

_NUMBERS = (bool, int, float, complex, type(None))
_OF_TORCH = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)
_MAX_ITEMS = 64
_MAX_CHARS = 400


def text_of(value: Any) -> str:
    """A plain value as text, or `NOT_PLAIN`; texts are shown by their digest, as they may be
    secret."""
    if isinstance(value, str | bytes) and type(value) in (str, bytes):
        data = value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")
        return f"{type(value).__name__} {hashlib.sha256(data).hexdigest()[:16]}"
    if type(value) in _NUMBERS or isinstance(value, _OF_TORCH):
        return f"{type(value).__name__} {value!r}"
    if type(value) in (tuple, list) and len(value) <= _MAX_ITEMS:
        return _joined(type(value).__name__, [text_of(item) for item in value])
    if type(value) is dict and len(value) <= _MAX_ITEMS:
        items = [text_of(key) + ": " + text_of(item) for key, item in value.items()]
        return _joined("dict", items)
    return NOT_PLAIN


def _joined(kind: str, items: list[str]) -> str:
    if any(NOT_PLAIN in item for item in items):
        return NOT_PLAIN
    text = f"{kind}({', '.join(items)})"
    if len(text) <= _MAX_CHARS:
        return text
    return f"{kind} {hashlib.sha256(text.encode()).hexdigest()[:16]}"
