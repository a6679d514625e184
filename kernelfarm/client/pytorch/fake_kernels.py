"""Registers how kernelfarm's operators run on shapes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch


def register_fake(name: str, function: Callable[..., Any]) -> None:
    """States that `function` makes the results of an operator without their elements.

    `torch.library.register_fake` asks `inspect` for the module that calls it. Without the entry
    below, `inspect` visits the files of all modules first: 20 ms of a start with transformers.
    """
    inspect.modulesbyfile[__file__] = __name__
    torch.library.register_fake(f"kernelfarm::{name}", function)
