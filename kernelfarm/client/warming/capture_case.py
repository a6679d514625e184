"""Captures the graphs of one case as `torch.compile(backend="kernelfarm")` would in a replica.

The model runs once, eagerly, graph by graph: later graphs of a model depend on the results of
earlier ones. A training step runs forward and backward. A `.pt2` file is read; it has one graph,
and no trace, because nothing traces it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import fx

from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.capture.exported import read_pt2
from kernelfarm.client.capture.graph import capture
from kernelfarm.client.capture.inline_regions import inline_regions
from kernelfarm.client.capture.input_order import InputOrder
from kernelfarm.client.capture.preserve_attention import preserve_attention
from kernelfarm.client.capture.product_fragments import product_fragments
from kernelfarm.client.capture.tracing import traced
from kernelfarm.client.farm.access import FarmAccess
from kernelfarm.client.farm.compile_options import CompileOptions
from kernelfarm.client.loaders.by_device import device_support, target_of
from kernelfarm.client.pytorch.private import (
    _pytree,
    make_boxed_func,
    unset_fake_temporarily,
)
from kernelfarm.client.traces.cache import TraceCache
from kernelfarm.client.traces.entry import to_bytes
from kernelfarm.client.traces.publication import Epoch
from kernelfarm.client.traces.sizes import NotCoveredError
from kernelfarm.client.warming.capture_package import captured_package
from kernelfarm.client.warming.captures import (
    CapturedCaseGraph,
    CapturedProduct,
    CapturedTrace,
    CaseCapture,
    identity_of,
)
from kernelfarm.client.warming.cases import Case
from kernelfarm.client.warming.manifest import ModelSpec
from kernelfarm.client.warming.models import BuiltModel, CaptureFailedError, build_model
from kernelfarm.digest import program_key
from kernelfarm.errors import CallerError, KernelfarmError
from kernelfarm.ir.graph_ir import ABI_VERSION
from kernelfarm.wire import graph_to_proto

_OF_A_FILE = "a .pt2 file is not traced: clients send its graph and find the program by its key"
_OF_TRAINING = "clients trace graphs with gradients at every start"
_PACKAGE_OF_TRAINING = "a client that calls the training step publishes its package"
_PACKAGE_OF_TUNED = "products 'tuned': a package cannot hold what the fleet chooses later"
_UNKNOWN_EPOCH = "the farm's epoch was not known before the graph was traced"


@dataclass(frozen=True, slots=True)
class CaptureRequest:
    """What is captured of a case: for programs with these options, also its package.

    `is_tuned`: the fleet chooses who computes each product. `target`: the one for which training
    graphs are traced; None for that of the model's device.
    """

    options: CompileOptions
    is_tuned: bool = False
    wants_package: bool = False
    target: str | None = None


@dataclass(slots=True)
class _Collector:
    """A backend for `torch.compile` that collects graphs, and runs them as they were captured."""

    access: FarmAccess
    wanted: CaptureRequest
    graphs: list[CapturedCaseGraph] = field(default_factory=list)

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        inline_regions(gm)
        preserve_attention(gm)
        order = InputOrder(gm)
        made_in = _known_epoch(self.access)
        traces = TraceCache(order.module, self.access, self.wanted.options)

        def inference(traced_module: fx.GraphModule, _: Sequence[Any]) -> Any:
            with unset_fake_temporarily():
                self._collect(traced_module, traces, made_in)
            return make_boxed_func(traced_module.forward)

        def training(traced_module: fx.GraphModule, _: Sequence[Any]) -> Any:
            with unset_fake_temporarily():
                captured = capture(traced_module)
                if not captured.is_trivial:
                    self._add(captured, None, _OF_TRAINING)
            return make_boxed_func(traced_module.forward)

        inputs, target = order.of(example_inputs), self.wanted.target
        targets = target_of if target is None else lambda _: target
        compiled = traced(order.module, inputs, training, inference, target_of=targets)
        return order.called_as_before(compiled)

    def _collect(
        self, traced_module: fx.GraphModule, traces: TraceCache, made_in: Epoch | None
    ) -> None:
        captured = capture(traced_module)
        if captured.is_trivial:
            return
        trace, reason = None, _UNKNOWN_EPOCH
        if made_in is not None:
            try:
                entry = traces.entry(traced_module, captured, self._key(captured))
                trace, reason = CapturedTrace(entry=to_bytes(entry), made_in=made_in), ""
            except NotCoveredError as error:
                reason = f"the trace cannot be stored: {error}"
        self._add(captured, trace, reason)

    def _add(self, captured: CapturedGraph, trace: CapturedTrace | None, reason: str) -> None:
        is_tuned = self.wanted.is_tuned
        self.graphs.append(_captured_graph(captured, trace, reason, is_tuned=is_tuned))

    def _key(self, captured: CapturedGraph) -> bytes:
        target = device_support(captured.device).target
        return program_key(captured.graph, target, self.wanted.options.pairs())


def capture_case(
    case: Case, access: FarmAccess, folder: Path, wanted: CaptureRequest
) -> CaseCapture:
    """The graphs of a case; paths of `.pt2` files are relative to `folder`.

    If a package is wanted, the model is traced once more for it.

    Raises:
        CaptureFailedError: the model cannot be built, run or captured; the message has the cause.
    """
    if case.model.file is not None:
        try:
            captured = read_pt2(folder / case.model.file).captured
        except KernelfarmError as error:
            raise CaptureFailedError(str(error)) from error
        graph = _captured_graph(captured, None, _OF_A_FILE, is_tuned=wanted.is_tuned)
        return CaseCapture(graphs=(graph,))
    built = build_model(case)
    collector = _Collector(access, wanted)
    torch.compiler.reset()  # else sizes of earlier cases matter
    try:
        _run(built, case.model, collector)
    except Exception as error:  # the user's code may raise anything
        cause = getattr(error, "inner_exception", error)
        raise CaptureFailedError(f"{case.title}: {type(cause).__name__}: {cause}") from error
    finally:
        torch.compiler.reset()
    if not collector.graphs:
        raise CaptureFailedError(f"{case.title}: the model computes nothing that can be compiled")
    if wanted.wants_package:
        return CaseCapture(
            graphs=_with_package(collector.graphs, built, case.model, access, wanted)
        )
    return CaseCapture(graphs=tuple(collector.graphs))


def capture_identity(case: Case, folder: Path, wanted: CaptureRequest) -> str:
    """The name of a case's capture: it changes with the case, the model's file and all packages.

    Raises:
        CaptureFailedError: the model's file cannot be read.
    """
    spec = case.model
    return identity_of(
        {
            "model": {
                "entry": spec.entry,
                "arguments": spec.arguments,
                "inputs": spec.inputs,
                "grad": spec.grad,
                "train": spec.train,
                "source": _source_digest(spec, folder),
            },
            "dtype": case.dtype,
            "sizes": case.size_texts(),
            "wanted": asdict(wanted),
            "packages": _packages_digest(),
            "abi": ABI_VERSION,
        }
    )


def _run(built: BuiltModel, spec: ModelSpec, collector: _Collector) -> None:
    # After a reset, the first call makes sizes constants, except those that inputs mark.
    compiled = torch.compile(built.call, backend=collector)
    if spec.train:
        with torch.enable_grad():
            _run_backward(compiled(*built.args, **built.kwargs))
        return
    with _gradients_off(spec):
        compiled(*built.args, **built.kwargs)


def _run_backward(results: Any) -> None:
    """Computes the gradients of all results: the graph is the same for every loss of them."""
    found = [leaf for leaf in _pytree.tree_leaves(results) if isinstance(leaf, torch.Tensor)]
    losses = [tensor for tensor in found if tensor.requires_grad]
    if not losses:
        raise CallerError(
            "no result requires a gradient; expected a loss, or results from which one is computed"
        )
    torch.autograd.backward(losses, [torch.ones_like(loss) for loss in losses])


def _gradients_off(spec: ModelSpec) -> AbstractContextManager[object]:
    return torch.inference_mode() if spec.grad == "inference_mode" else torch.no_grad()


def _with_package(
    graphs: Sequence[CapturedCaseGraph],
    built: BuiltModel,
    spec: ModelSpec,
    access: FarmAccess,
    wanted: CaptureRequest,
) -> tuple[CapturedCaseGraph, ...]:
    """The graphs, the first of which has the package if it is the only one."""
    first, *others = graphs
    made_in, package, reason = _known_epoch(access), None, ""
    if spec.train:
        reason = _PACKAGE_OF_TRAINING
    elif wanted.is_tuned:
        reason = _PACKAGE_OF_TUNED
    elif others:
        reason = f"the model has {len(graphs)} graphs"
    elif made_in is None:
        reason = _UNKNOWN_EPOCH
    else:
        try:
            with _gradients_off(spec):
                entry = captured_package(built, first.graph, access, wanted.options)
            package = CapturedTrace(entry=entry, made_in=made_in)
        except NotCoveredError as error:
            reason = str(error)
        finally:
            torch.compiler.reset()
    return first.model_copy(update={"package": package, "no_package": reason}), *others


def _captured_graph(
    captured: CapturedGraph, trace: CapturedTrace | None, reason: str, *, is_tuned: bool
) -> CapturedCaseGraph:
    found = product_fragments(captured).fragments if is_tuned else ()
    return CapturedCaseGraph(
        graph=_graph_bytes(captured),
        device=captured.device.type,
        trace=trace,
        no_trace=reason,
        products=tuple(
            CapturedProduct(nodes=cut.nodes, graph=_graph_bytes(cut.captured)) for cut in found
        ),
    )


def _graph_bytes(captured: CapturedGraph) -> bytes:
    return graph_to_proto(captured.graph).SerializeToString(deterministic=True)


def _known_epoch(access: FarmAccess) -> Epoch | None:
    known = access.watch.invalidations
    return None if known is None else Epoch(known.incarnation, known.epoch)


def _source_digest(spec: ModelSpec, folder: Path) -> str:
    """SHA-256 of the file that defines the model: its `.pt2` file, or its entry's module."""
    if spec.file is not None:
        path = folder / spec.file
    else:
        assert spec.entry is not None
        try:
            found = importlib.util.find_spec(spec.entry.partition(":")[0])
        except (ImportError, ValueError):
            found = None
        if found is None or found.origin is None:
            return ""  # importing it fails, or it has no file
        path = Path(found.origin)
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CaptureFailedError(f"cannot read {path}: {error}") from error


@lru_cache(maxsize=1)
def _packages_digest() -> str:
    """A digest of the names and versions of all installed packages."""
    found = {(d.name, d.version) for d in importlib.metadata.distributions()}
    return identity_of(sorted(f"{name}=={version}" for name, version in found))
