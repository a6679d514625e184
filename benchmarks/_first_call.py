"""One arm of the cold-start benchmark: a new process that times one first call.

Prints one JSON line. Both arms load torch, Dynamo, AOT Autograd, the backend's modules and
(kernelfarm) its channel to the farm before the measurement. It covers the first call of the
compiled model; the time since the start of the process is reported too.
"""

from __future__ import annotations

import json
import sys
import time
from importlib import import_module


def main(backend: str, name: str, started: float) -> None:
    import torch  # noqa: PLC0415 (the import is part of `since_start_s`)
    import torch._dynamo  # noqa: PLC0415
    import torch._functorch.aot_autograd  # noqa: PLC0415

    from examples.real_inputs import WHOLE_GRAPHS  # noqa: PLC0415

    _load_backend(backend)
    source = WHOLE_GRAPHS[name]()
    compiled = torch.compile(source.model, backend=backend)
    with torch.no_grad():
        begun = time.perf_counter()
        result = compiled(*source.args)
        first_call_s = time.perf_counter() - begun
        since_start_s = time.time() - started
        expected = source.model(*source.args)
    error = (result - expected).abs().max().item()
    print(
        json.dumps({"first_call_s": first_call_s, "since_start_s": since_start_s, "error": error})
    )


def _load_backend(backend: str) -> None:
    if backend == "inductor":
        import_module("torch._inductor.compile_fx")
    else:
        from kernelfarm.client import torch_backend  # noqa: PLC0415

        torch_backend.preload()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
