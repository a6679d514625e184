"""`kernelfarm.hints(...)`: hints for the operations of a model, as annotations of traced nodes.

PyTorch copies the annotations of a node to all nodes that tracing makes of it, also to those of its
gradient.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import fx
from torch.fx.traceback import annotate

from kernelfarm.ir.hints import KernelHint, read_hints

_PREFIX = "kernelfarm.hints: "


def hints(text: str) -> AbstractContextManager[None]:
    """States hints for the operations that a model calls in the block: `num_warps=8, async=3`.

    A hint never changes a result. A target ignores what it does not know or what does not fit. If
    blocks are nested, the hints of both count; of equal names, the inner one's.

    Raises:
        InvalidGraphError: a hint has another form; a model that is compiled raises it then.

    Example:
        >>> with hints("waves_per_eu=2"):
        ...     y = torch.softmax(torch.ones(2, 4), -1)
    """
    if not torch.compiler.is_compiling():
        read_hints(text)
    # One key for each text, because an inner block's value for an equal key replaces the outer one.
    return annotate({_PREFIX + text: True})


def hints_of(node: fx.Node) -> tuple[KernelHint, ...]:
    """The hints of a traced node, in the order of their names.

    Raises:
        InvalidGraphError: a hint has another form.
    """
    stated = node.meta.get("custom") or {}
    texts = (key.removeprefix(_PREFIX) for key in stated if str(key).startswith(_PREFIX))
    by_name = {hint.name: hint for text in texts for hint in read_hints(text)}
    return tuple(by_name[name] for name in sorted(by_name))
