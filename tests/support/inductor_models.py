"""Launches of Inductor for models: `python -m tests.support.inductor_models "MODEL TYPE" ...`.

Only the text of the wrapper is needed: kernels are generated but not compiled, and calls of them do
nothing. Prints one JSON line for each argument.
"""

from __future__ import annotations

import json
import sys

import torch
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.utils import run_and_get_code

from examples.model_zoo import model_of
from tests.support.inductor_launches import count_launches


def main(wanted: list[str]) -> None:
    AsyncCompile.cpp_pybinding = lambda *_, **__: lambda *_: None
    for key in wanted:
        name, dtype = key.split()
        torch._dynamo.reset()
        source = model_of(name, getattr(torch, dtype))
        with torch.no_grad():
            compiled = torch.compile(source.model, backend="inductor")
            _, wrappers = run_and_get_code(compiled, *source.args)
        print(json.dumps({key: count_launches(wrappers)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
