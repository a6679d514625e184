"""The compressed data in a program's page, as its script reads it."""

from __future__ import annotations

import base64
import json
import re
import zlib
from typing import Any

_BLOCK = re.compile(r'<script type="application/octet-stream"[^>]*>([^<]*)</script>')


def data_blocks(page: str) -> list[Any]:
    """The JSON of each block: whole texts of each program, and its kernels' stages after them."""
    return [json.loads(zlib.decompress(base64.b64decode(data))) for data in _BLOCK.findall(page)]


def linked_stages(kernel: Any) -> dict[str, bool]:
    """The stages of a kernel's general variant: whether a line of each is linked to others."""
    general = len(kernel["variants"]) - 1
    panes = [pane for pane in kernel["panes"] if pane["variant"] == general]
    return {pane["name"]: any(pane["marks"]) for pane in [*kernel["common"], *panes]}
