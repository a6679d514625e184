"""Program keys of the model zoo, to be compared between devices and versions of torch.

Usage: python -m tests.gpu.keys write FILE [--device cpu] [--dtypes T ...] [--models NAME ...]
           [--training]
       python -m tests.gpu.keys compare FILE FILE
"""

from __future__ import annotations

import argparse
import difflib
import gzip
import json
import sys
import warnings
from pathlib import Path

import torch

from examples.model_zoo import MODELS, model_of
from kernelfarm.client.capture.captured import CapturedGraph
from tests.support.prepared_folder import canonical_text
from tests.support.traced_graphs import recording

DTYPES = ("float32", "float16", "bfloat16")
MOST_LINES_SHOWN = 14
Texts = dict[str, list[str]]
TARGET = "cuda:sm_90a"
"""The target of all programs, whose training graphs depend on it."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    write = commands.add_parser("write")
    write.add_argument("file", type=Path)
    write.add_argument("--device", default="cpu")
    write.add_argument("--dtypes", nargs="*", default=DTYPES)
    write.add_argument("--models", nargs="*", default=list(MODELS))
    write.add_argument("--training", action="store_true")
    compare = commands.add_parser("compare")
    compare.add_argument("files", type=Path, nargs=2)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.command == "compare":
        return compared(*options.files)
    texts: Texts = {}
    for name in options.models:
        for dtype in options.dtypes:
            texts[f"{name} {dtype}"] = texts_of(name, dtype, options.device, options.training)
    options.file.write_bytes(gzip.compress(json.dumps(texts).encode()))
    return 0


def texts_of(name: str, dtype: str, device: str, is_training: bool) -> list[str]:
    """Canonical texts of a model's graphs; or the error, where it cannot be traced."""
    source = model_of(name, getattr(torch, dtype))
    model, args = source.model.to(device), [arg.to(device) for arg in source.args]
    found: list[CapturedGraph] = []
    torch._dynamo.reset()
    compiled = torch.compile(model.train(is_training), backend=recording(found, target=TARGET))
    try:
        with torch.set_grad_enabled(is_training):
            result = compiled(*args)
            if is_training:
                result.float().square().mean().backward()
    except Exception as error:  # one model's failure is a line, not the end of the table
        return [f"{type(error).__name__}: {str(error).splitlines()[0]}"]
    return [canonical_text(each.graph) for each in found]


def compared(first: Path, second: Path) -> int:
    """Prints what differs; 1 if anything does."""
    ours, theirs = (json.loads(gzip.decompress(path.read_bytes())) for path in (first, second))
    common = [name for name in ours if name in theirs]
    differing = [name for name in common if ours[name] != theirs[name]]
    for name in differing:
        print(name, f"{len(ours[name])} and {len(theirs[name])} graphs")
        for one, other in zip(ours[name], theirs[name], strict=False):
            lines = difflib.unified_diff(one.splitlines(), other.splitlines(), lineterm="", n=0)
            print("\n".join(f"    {line[:230]}" for line in list(lines)[2:MOST_LINES_SHOWN]))
    print(f"{len(common) - len(differing)} of {len(common)} equal")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
