"""One arm of the warm-start benchmark: a new process that times its first call of one model.

Usage: python -m benchmarks._warm_call BACKEND MODEL STARTED MODULES [PACKAGE]

`STARTED` is the time at which the process was started, in seconds since 1970. With `PACKAGE`, the
model is compiled by `aot_compile` and saved to that file, or loaded from it if it exists, in place
of `torch.compile`; loading is part of the first call. If `PACKAGE` is `farm`, the model is called
by `kernelfarm.packaged`. Prints one JSON line.
Clocks, in seconds of wall clock and of processor time (of this process and its ended children):

    start     from the start of the process to the result
    call      from `torch.compile` to the result; the process has imported PyTorch and built the
              model, and nothing else
    loaded    the same, after the process has imported every module that an earlier process of this
              arm had imported at its end

If the file `MODULES` exists, the process imports the modules that it names and reports the clock
`loaded` with the phases below. Else it reports `start` and `call`, and writes the file.

    import    PyTorch; not part of the calls
    build     the model with random weights, and the libraries that define it; not part of the calls
    dynamo    from `torch.compile` to the backend's entry
    trace     kernelfarm: digest and entry, or tracing and capture; the rest of the backend
    ask       kernelfarm: the look-up of a trace with its program, if the disk has none
    program   kernelfarm: the program checked and decoded, without kernels; reads from disk too
    load      kernelfarm: kernels fetched, checked and loaded
    backend   all of the backend; Inductor: its caches read and its code loaded
              with a package: all of loading it, in place of `dynamo` too; with one of the farm,
              also the question, the look-up (`ask`) and the checks
    run       from the backend's exit to the result: guards, and one run
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
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


def main(arm: str, name: str, started_s: float, modules: Path, package: Path | None) -> None:
    begun = now()
    import torch  # noqa: PLC0415 (the import is a phase of its own)

    note("import", begun, now())
    begun = now()
    source = _source(name)
    note("build", begun, now())
    clocks = {}
    with torch.no_grad():
        if modules.exists():
            _import_all(modules)
            call = _phased_call if package is None else _phased_load
            clocks["loaded"], result = call(arm, source, package)
        else:
            begun = now()
            result = _first_call(arm, source, package)
            ended = now()
            clocks["call"] = _seconds(begun, ended)
            clocks["start"] = (time.time() - started_s, ended[1])
            modules.write_text("\n".join(sys.modules))
        error = (result - source.model(*source.args)).abs().max().item()
    found = import_module("torch._dynamo.utils").counters
    counters = _counters(arm)
    graphs = found["stats"]["unique_graphs"]
    traced = found["aot_autograd"]["total"] + counters.get("traced.short", 0)
    facts = {"clocks": clocks, "phases": _phases, "error": error, "graphs": graphs}
    facts["package_bytes"] = _package_bytes(package)
    print(json.dumps({**facts, "traced": traced, "counters": counters}))


_AT_FARM = Path("farm")
"""In place of a file: the package is looked up at the farm."""


def _package_bytes(package: Path | None) -> int:
    """The size of the package, as a file or as the content that the client keeps on its disk."""
    if package is None:
        return 0
    if package != _AT_FARM:
        return package.stat().st_size
    tier = import_module("kernelfarm.client.disk.tier")
    root = import_module("kernelfarm.client.settings").client_settings().disk_cache_dir
    entries = (tier.read_entry(path).manifest for path in root.glob("programs/*/*/*/*.json"))
    return sum(e.content.size_bytes for e in entries if "pass:package" in e.tags)


def _first_call(arm: str, source: Any, package: Path | None) -> Any:
    torch = import_module("torch")
    if package == _AT_FARM:
        return import_module("kernelfarm").packaged(source.model, dynamic=source.dynamic)(
            *source.args
        )
    is_module = isinstance(source.model, torch.nn.Module)
    if package is None:
        return torch.compile(source.model, backend=arm, dynamic=source.dynamic)(*source.args)
    if not package.exists():
        options = {"guard_filter_fn": _serializable}
        compiled = torch.compile(
            source.model, backend=arm, fullgraph=True, dynamic=source.dynamic, options=options
        )
        entry = compiled.forward if is_module else compiled
        entry.aot_compile((source.args, {})).save_compiled_function(str(package))
    function = _loaded(package)
    return function(source.model, *source.args) if is_module else function(*source.args)


def _serializable(guards: Sequence[Any]) -> list[bool]:
    """The guards that PyTorch can store; it refuses models of transformers with all of them."""
    guard_kinds = import_module("torch._dynamo.guards").CheckFunctionManager
    refused = set(guard_kinds.UNSUPPORTED_SERIALIZATION_GUARD_TYPES)
    return [
        not guard.is_global and not refused & {guard.guard_type, *guard.derived_guard_types}
        for guard in guards
    ]


def _loaded(package: Path) -> Any:
    with package.open("rb") as file:
        return import_module("torch").compiler.load_compiled_function(file)


def _phased_load(arm: str, source: Any, package: Path) -> tuple[Clock, Any]:
    """The first call of a package; also fills the phases."""
    global _loaded  # noqa: PLW0603 -- its time is a phase
    _loaded = timed("backend", _loaded)
    if package == _AT_FARM:
        packaged = import_module("kernelfarm.client.packaged").PackagedModel
        packaged._ask = timed("backend", packaged._ask)
    if arm != "inductor":
        _backend(arm)
    begun = now()
    result = _first_call(arm, source, package)
    ended = now()
    note("run", begun, ended)
    for i in (0, 1):
        _phases["run"][i] -= _phases["backend"][i]
    _split_backend(arm)
    return _seconds(begun, ended), result


def _import_all(modules: Path) -> None:
    for name in modules.read_text().split():
        # Generated modules and those of extensions have no import of their own.
        with suppress(ImportError, AttributeError):
            import_module(name)


def _seconds(begun: Clock, ended: Clock) -> Clock:
    return ended[0] - begun[0], ended[1] - begun[1]


def _phased_call(arm: str, source: Any, _: None) -> tuple[Clock, Any]:
    """The first call; also fills the phases."""
    torch = import_module("torch")
    backend = _backend(arm)
    spans: list[tuple[Clock, Clock]] = []

    def entered(gm: Any, example_inputs: Any) -> Any:
        begun = now()
        compiled = backend(gm, example_inputs)
        spans.append((begun, now()))
        return compiled

    begun = now()
    result = torch.compile(source.model, backend=entered, dynamic=source.dynamic)(*source.args)
    ended = now()
    note("dynamo", begun, spans[0][0])
    for span in spans:
        note("backend", *span)
    note("run", spans[-1][1], ended)
    _split_backend(arm)
    return _seconds(begun, ended), result


def _backend(arm: str) -> Callable[..., Any]:
    if arm == "inductor":
        return import_module("torch._inductor.compile_fx").compile_fx
    torch_backend = import_module("kernelfarm.client.torch_backend")
    loaded = import_module("kernelfarm.client.programs.loaded")
    store = import_module("kernelfarm.client.programs.store")
    traces = import_module("kernelfarm.client.farm.trace_client").TraceClient
    store.find_program = timed("program", store.find_program)
    traces.lookup = timed("ask", traces.lookup)
    loaded.load_kernels = timed("load", loaded.load_kernels)
    return torch_backend.kernelfarm


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
    full = import_module("examples.full_models")
    whole = inputs.WHOLE_GRAPHS | full.FULL | full.DEEP
    return whole[name]() if name in whole else zoo.model_of(name, torch.float32)


def _counters(arm: str) -> dict[str, int]:
    if arm != "inductor":
        return import_module("kernelfarm.client.counters").snapshot()
    found = import_module("torch._dynamo.utils").counters
    kept = {**found["aot_autograd"], **found["inductor"]}
    return {key: value for key, value in kept.items() if "cache" in key}


if __name__ == "__main__":
    package = Path(sys.argv[5]) if len(sys.argv) > 5 else None
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), Path(sys.argv[4]), package)
