"""NVIDIA's tools inside Triton's wheel."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path


def nvidia_tool(name: str) -> Path | None:
    """The path of a tool in the wheel's NVIDIA folder, None if it is absent."""
    try:
        root = metadata.distribution("triton").locate_file("triton/backends/nvidia/bin")
    except metadata.PackageNotFoundError:
        return None
    path = Path(str(root)) / name
    return path if path.is_file() else None
