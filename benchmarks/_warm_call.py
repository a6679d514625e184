"""One arm of the warm-start benchmark: a new process that times one first call, phase by phase.

Prints one JSON line: seconds of wall clock and of processor time, of this process and its ended
children, for each phase.
    import    torch, the backend and all that it loads before the measurement; not part of `first`
    dynamo    from the call to the backend's entry
    trace     kernelfarm: digest and entry, or tracing and capture; the rest of the backend
    ask       kernelfarm: the look-up of a trace with its program, if the disk has none
    program   kernelfarm: the program checked and decoded, without kernels; reads from disk too
    load      kernelfarm: kernels fetched, checked and loaded
    backend   all of the backend; Inductor: its caches read and its code loaded
    run       from the backend's exit to the result: guards, and one run
    first     from the call to the result: dynamo, backend and run
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from importlib import import_module
from typing import Any

Clock = tuple[float, float]
_phases: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])


def now() -> Clock:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor_s = time.process_time() + children.ru_utime + children.ru_stime
    return time.perf_counter(), processor_s


def note(phase: str, begun: Clock, ended: Clock) -> None:
    for i in (0, 1):
        _phases[phase][i] += ended[i] - begun[i]


def timed(phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        begun = now()
        try:
            return function(*args, **kwargs)
        finally:
            note(phase, begun, now())

    return run


def main(arm: str, name: str) -> None:
    begun = now()
    import torch  # noqa: PLC0415 (the import is a phase of its own)
    import torch._dynamo  # noqa: PLC0415
    import torch._functorch.aot_autograd  # noqa: PLC0415

    backend = _backend(arm)
    note("import", begun, now())
    source = _source(name)
    spans: list[tuple[Clock, Clock]] = []

    def entered(gm: Any, example_inputs: Any) -> Any:
        begun = now()
        compiled = backend(gm, example_inputs)
        spans.append((begun, now()))
        return compiled

    with torch.no_grad():
        begun = now()
        result = torch.compile(source.model, backend=entered)(*source.args)
        ended = now()
        error = (result - source.model(*source.args)).abs().max().item()
    note("dynamo", begun, spans[0][0])
    for span in spans:
        note("backend", *span)
    note("run", spans[-1][1], ended)
    note("first", begun, ended)
    _split_backend(arm)
    traced = torch._dynamo.utils.counters["aot_autograd"]["total"]
    found = {"phases": _phases, "error": error, "graphs": len(spans), "traced": traced}
    print(json.dumps({**found, "counters": _counters(arm)}))


def _backend(arm: str) -> Callable[..., Any]:
    if arm == "inductor":
        compile_fx = import_module("torch._inductor.compile_fx").compile_fx
        import_module("torch._inductor.codecache")
        return compile_fx
    torch_backend = import_module("kernelfarm.client.torch_backend")
    loaded = import_module("kernelfarm.client.programs.loaded")
    store = import_module("kernelfarm.client.programs.store")
    traces = import_module("kernelfarm.client.farm.trace_client").TraceClient
    store.find_program = timed("program", store.find_program)
    traces.lookup = timed("ask", traces.lookup)
    loaded.load_kernels = timed("load", loaded.load_kernels)
    torch_backend.preload()
    return lambda gm, args: torch_backend.kernelfarm(gm, args, mode="strict")


def _split_backend(arm: str) -> None:
    if arm == "inductor":
        return
    for i in (0, 1):
        others = _phases["program"][i] + _phases["ask"][i]
        _phases["trace"][i] = _phases["backend"][i] - others
        _phases["program"][i] -= _phases["load"][i]


def _source(name: str) -> Any:
    torch = import_module("torch")
    inputs, zoo = import_module("examples.real_inputs"), import_module("examples.model_zoo")
    graphs = inputs.WHOLE_GRAPHS
    return graphs[name]() if name in graphs else zoo.model_of(name, torch.float32)


def _counters(arm: str) -> dict[str, int]:
    if arm != "inductor":
        return import_module("kernelfarm.client.counters").snapshot()
    found = import_module("torch._dynamo.utils").counters
    kept = {**found["aot_autograd"], **found["inductor"]}
    return {key: value for key, value in kept.items() if "cache" in key}


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
