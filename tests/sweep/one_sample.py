"""One sample through the farm and beside it eager."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import fx
from torch._functorch.aot_autograd import aot_function, make_boxed_func
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils import _pytree as pytree

from kernelfarm.client.capture.graph import capture
from kernelfarm.errors import KernelfarmError
from tests.support.in_process_compiler import Compile, Counts, interpret_here
from tests.support.judge import judge
from tests.sweep.exact_functions import exact_values
from tests.sweep.records import Outcome
from tests.sweep.samples import Sample, seed_all
from tests.sweep.tied_elements import (
    CHOOSING,
    CHOOSING_GRADIENTS,
    with_chosen_gradients,
    with_chosen_places,
)

UNDEFINED = frozenset(
    {
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "resize_",
        "resize_as_",
    }
)
"""Operators whose results hold whatever the memory held."""

NEIGHBOURS = 4

RANDOM_SEED = 1234
"""Set before each run, so that random operators answer alike."""


@dataclass(frozen=True, slots=True)
class Found:
    """What became of a sample, with the reason if it is not right."""

    outcome: Outcome
    reason: str
    counts: Counts


def run_sample(op: str, sample: Sample, mode: str, compile_graph: Compile) -> Found:
    """Runs a sample in eager mode and compiled, and judges the results."""
    run = _with_gradients if mode == "backward" else _forward
    counts = Counts()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            eager = run(sample.function, sample.tensors)
        except Exception as error:
            return Found(Outcome.UNTRACEABLE, f"eager raises {_text(error)}", counts)
        found = _compiled(sample, run, _FarmCompiler(compile_graph, counts))
        if isinstance(found, Found):
            return Found(found.outcome, found.reason, counts)
        return _judged(op, sample, run, (found, eager), counts)


def _compiled(sample: Sample, run: _Run, compiler: _FarmCompiler) -> Any:
    try:
        return run(aot_function(sample.function, fw_compiler=compiler), sample.tensors)
    except Exception as error:
        refusal = _cause(error, KernelfarmError)
        if refusal is not None:
            kind = Outcome.REFUSED
            if refusal.status == "INTERNAL":
                kind = Outcome.RAISES
            return Found(kind, _text(refusal), Counts())
        if compiler.is_ours:
            return Found(Outcome.RAISES, _text(error), Counts())
        return Found(Outcome.UNTRACEABLE, _text(error), Counts())


def _judged(op: str, sample: Sample, run: _Run, results: tuple[Any, Any], counts: Counts) -> Found:
    ours, eager = results
    if counts.draws:
        return _judged_random(sample, run, ours, eager, counts)
    if run is _with_gradients and op in CHOOSING_GRADIENTS:
        ours = with_chosen_gradients(ours, eager, sample.tensors[0])
    elif op in CHOOSING and sample.tensors:
        ours = with_chosen_places(ours, eager, sample.tensors[0])
    is_undefined = op.partition(".")[0] in UNDEFINED
    verdict = judge(ours, eager, None, is_undefined=is_undefined)
    exact = None
    if verdict.problem or verdict.is_loose:
        exact = _exact(op, sample, run)
        verdict = judge(ours, eager, exact, sample.tensors, is_undefined=is_undefined)
    near: list[tuple[Any, Any]] = []
    if verdict.problem and exact is not None:
        near = _neighbours(op, sample, run, eager)
        verdict = judge(ours, eager, exact, sample.tensors, near, is_undefined=is_undefined)
    if not verdict.problem:
        return Found(_kind(counts), "loose" if verdict.is_loose else "", counts)
    # The framework's own tracing may already differ: then that is what we must equal.
    traced = run(aot_function(sample.function, fw_compiler=_run_as_traced), sample.tensors)
    if not judge(ours, traced, exact, sample.tensors, near, is_undefined=is_undefined).problem:
        return Found(_kind(counts), f"as traced, not as eager: {verdict.problem}", counts)
    return Found(Outcome.WRONG, verdict.problem, counts)


def _judged_random(sample: Sample, run: _Run, ours: Any, eager: Any, counts: Counts) -> Found:
    """Types, shapes and strides are eager's; the numbers are what they mean for equal seeds."""
    problem = judge(ours, eager, None, is_undefined=True).problem
    if problem:
        return Found(Outcome.WRONG, problem, counts)
    meant = _compiled(sample, run, _FarmCompiler(interpret_here, Counts()))
    if isinstance(meant, Found):
        return Found(meant.outcome, f"interpreted: {meant.reason}", counts)
    # Strides were judged beside eager's; the interpreter lays values out as it likes.
    verdict = judge(_dense(ours), _dense(meant), None, sample.tensors)
    if verdict.problem:
        return Found(Outcome.WRONG, f"other numbers than the seeds mean: {verdict.problem}", counts)
    return Found(_kind(counts), "loose" if verdict.is_loose else "", counts)


def _dense(results: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda t: t.detach().contiguous(), results)


def _kind(counts: Counts) -> Outcome:
    if not counts.externs:
        return Outcome.NATIVE
    return Outcome.MIXED if counts.launches else Outcome.EXTERN


class _FarmCompiler:
    """What AOT Autograd calls with each graph; knows afterwards whether an error was ours."""

    def __init__(self, compile_graph: Compile, counts: Counts) -> None:
        self._compile = compile_graph
        self._counts = counts
        self.is_ours = False

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        self.is_ours = True
        with unset_fake_temporarily():
            captured = capture(gm)
            if captured.is_trivial:
                self.is_ours = False
                return make_boxed_func(gm.forward)
            runner = self._compile(captured, self._counts)
        self.is_ours = False

        def run(args: list[Any]) -> list[Any]:
            self.is_ours = True
            results = runner(args)
            self.is_ours = False
            return results

        run._boxed_call = True  # type: ignore[attr-defined] # AOT Autograd's mark
        return run


def _run_as_traced(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """The traced graph with its promises: what lies in memory is as the trace says."""
    (returned,) = (node.args[0] for node in gm.graph.nodes if node.op == "output")
    promised = [node.meta.get("val") if isinstance(node, fx.Node) else None for node in returned]

    def run(*args: Any) -> list[Any]:
        return [_laid_out(r, p) for r, p in zip(gm.forward(*args), promised, strict=True)]

    return make_boxed_func(run)


def _laid_out(result: Any, promised: Any) -> Any:
    if not isinstance(result, torch.Tensor) or result.layout is not torch.strided:
        return result
    if (result.stride(), result.dtype) == (promised.stride(), promised.dtype):
        return result
    out = torch.empty_strided(result.shape, promised.stride(), dtype=promised.dtype)
    return out.copy_(result)


_Run = Callable[[Callable[..., Any], Sequence[torch.Tensor]], Any]


def _forward(function: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> Any:
    seed_all(RANDOM_SEED)
    with torch.no_grad():
        return _detached(function(*(_copy(t.detach()) for t in tensors)))


def _with_gradients(
    function: Callable[..., Any],
    tensors: Sequence[torch.Tensor],
    *,
    nudges: torch.Generator | None = None,
) -> Any:
    """Results and gradients; `nudges` moves what the gradients begin with by roundings."""
    seed_all(RANDOM_SEED)
    leaves = [_copy(t.detach()).requires_grad_(t.requires_grad) for t in tensors]
    results = function(*leaves)
    reference = [leaf for leaf in leaves if leaf.requires_grad]
    roots = [r for r in pytree.tree_leaves(results) if _has_gradient(r)]
    if not roots or not reference:
        return _detached(results)
    seed_all(RANDOM_SEED + 1)
    seeds = [torch.randn(r.shape, dtype=torch.float64).to(r.dtype) for r in roots]
    if nudges is not None:
        seeds = [_nudged(seed, nudges) for seed in seeds]
    gradients = torch.autograd.grad(roots, reference, seeds, allow_unused=True)
    return _detached(results), gradients


def _has_gradient(result: Any) -> bool:
    return isinstance(result, torch.Tensor) and result.requires_grad


def _detached(results: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda t: t.detach(), results)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of its own with the same strides, so that no run sees another's writes."""
    if tensor.layout is not torch.strided:
        return tensor.clone()
    span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    if not tensor.numel():
        return tensor.clone()
    memory = tensor.as_strided((span,), (1,)).clone()
    return memory.as_strided(tensor.shape, tensor.stride(), 0)


def _exact(op: str, sample: Sample, run: _Run) -> Any | None:
    wide = [t.double() if t.is_floating_point() else t for t in sample.tensors]
    for source, tensor in zip(sample.tensors, wide, strict=True):
        if source.requires_grad and not tensor.is_leaf:
            tensor.requires_grad_(True)
    try:
        found = run(sample.function, wide)
    except Exception:  # no answer in float64: eager's own is what there is
        return None
    if isinstance(found, torch.Tensor):
        return exact_values(op, sample.tensors[0], found)
    return found


def _neighbours(op: str, sample: Sample, run: _Run, eager: Any) -> list[tuple[Any, Any]]:
    """Eager's and float64's answers for inputs that differ by roundings.

    Of float64 itself, where nothing is more exact, eager's answers there and here: how far they
    are apart is what an input's rounding does to the result, and no algorithm can be held to less.
    """
    nudges = torch.Generator().manual_seed(RANDOM_SEED)  # its own: runs reset the global one
    if run is _with_gradients:
        run = partial(_with_gradients, nudges=nudges)
    is_widest = any(tensor.dtype is torch.float64 for tensor in sample.tensors)
    found = []
    for _ in range(NEIGHBOURS):
        tensors = [_nudged(tensor, nudges) for tensor in sample.tensors]
        near = Sample(sample.function, tuple(tensors))
        if is_widest:
            found.append((run(sample.function, tensors), eager))
            continue
        exact = _exact(op, near, run)
        if exact is not None:
            found.append((run(sample.function, tensors), exact))
    return found


def _nudged(tensor: torch.Tensor, nudges: torch.Generator) -> torch.Tensor:
    if not tensor.is_floating_point() or tensor.layout is not torch.strided:
        return tensor
    steps = torch.randint(-2, 3, tensor.shape, generator=nudges).double()
    factor = 1 + torch.finfo(tensor.dtype).eps * steps
    near = (tensor.detach().double() * factor).to(tensor.dtype)
    return near.requires_grad_(tensor.requires_grad)


def _cause(error: BaseException | None, kind: type[KernelfarmError]) -> KernelfarmError | None:
    while error is not None:
        if isinstance(error, kind):
            return error
        error = error.__cause__ or error.__context__
    return None


def _text(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]
