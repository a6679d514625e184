"""Runs the programs of a graph as CUDA graphs (`mode="reduce-overhead"`).

PyTorch's CUDA graph trees, which Inductor uses, too, own the memory, record and replay. The first
call with some sizes warms up, the second one is recorded, later ones are replays, which run no step
of the plan in Python. This module decides which programs are recorded and gives the trees what the
traces know about their arguments. A program that is not recorded launches its kernels one by one;
a counter and one line of the log say why.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch

from kernelfarm.client import counters
from kernelfarm.client.programs.recordable import NotRecorded, obstacle, written_arguments
from kernelfarm.client.pytorch import private
from kernelfarm.client.pytorch.private.inductor import can_record_in_this_thread
from kernelfarm.client.pytorch.private.tracing import mark_boxed
from kernelfarm.client.runtime.runner import PlanRunner

_log = logging.getLogger("kernelfarm.client")

MAX_RECORDED_SIZES = 64
"""Sizes of a graph that a thread records, as many as have a layout (`runner.MAX_LAYOUTS`): each
recording holds memory of its own. Calls with further sizes launch their kernels."""

Call = Callable[[list[Any]], Sequence[Any]]


class GraphUse(Enum):
    """Which graph of a model this is: recordings of a training step depend on one another."""

    INFERENCE = "inference"
    FORWARD = "forward"
    BACKWARD = "backward"


@dataclass(slots=True)
class TrainingStep:
    """What a backward graph has to know of its forward graph: whether its last call was recorded.

    The tensors that it saved then have fixed addresses, on which the backward graph's recording
    depends.
    """

    is_recorded: bool = False


@dataclass(frozen=True, slots=True)
class TracedFacts:
    """What the trace of a graph knows about a recording.

    `static` are the positions of the arguments whose memory stays where it is: parameters, buffers,
    tensors marked by `torch._dynamo.mark_static_address`, and in a backward graph what the forward
    graph saved. All others are copied at each replay. `origins` has the source code of each result,
    for the messages of PyTorch.
    """

    use: GraphUse = GraphUse.INFERENCE
    static: tuple[int, ...] = ()
    origins: tuple[str | None, ...] = ()
    step: TrainingStep = field(default_factory=TrainingStep)


class _OfThread(threading.local):
    """The calling thread's recordings of the present program, by the sizes of a call."""

    def __init__(self) -> None:
        self.program: PlanRunner | None = None
        self.by_sizes: dict[tuple[int, ...], Call | None] = {}


class CudaGraphs:
    """The recordings of one graph; `run` calls its program."""

    def __init__(self, facts: TracedFacts) -> None:
        self._facts = facts
        self._own = _OfThread()
        self._said: set[str] = set()

    def run(self, program: PlanRunner, args: list[Any]) -> Sequence[Any]:
        """The module's outputs: a replay if the call is recorded; clears the list of arguments."""
        recorded = self._recorded(program, args)
        if recorded is None:
            return self.unrecorded(program, args)
        results = recorded(args)
        if self._facts.use is GraphUse.FORWARD:
            self._facts.step.is_recorded = True
        return results

    def unrecorded(self, call: Call, args: list[Any]) -> Sequence[Any]:
        """The results of a call that is not recorded; clears the list of arguments."""
        use, step = self._facts.use, self._facts.step
        if use is GraphUse.FORWARD:
            step.is_recorded = False
        elif use is GraphUse.BACKWARD and step.is_recorded:
            _note_backward()
        results = call(args)
        args.clear()
        return results

    def around(self, call: Call) -> Call:
        """A boxed function that is never recorded, for a graph without a program."""

        def run(args: list[Any]) -> Sequence[Any]:
            return self.unrecorded(call, args)

        mark_boxed(run)
        return run

    def _recorded(self, program: PlanRunner, args: list[Any]) -> Call | None:
        own = self._own
        if own.program is not program:  # also after an invalidation
            own.program, own.by_sizes = program, {}
        sizes = program.sizes(args)
        try:
            recorded = own.by_sizes[sizes]
        except KeyError:
            recorded = self._first(program, args, sizes)
        if recorded is None or not self._finds_saved_tensors():
            return None
        # The caller may be recording a CUDA graph of its own.
        return None if torch.cuda.is_current_stream_capturing() else recorded

    def _first(self, program: PlanRunner, args: list[Any], sizes: tuple[int, ...]) -> Call | None:
        """The recorded function for sizes that the thread meets for the first time, if there is."""
        known, facts = self._own.by_sizes, self._facts
        found = obstacle(program.program, facts.static, args)
        if found is None and len(known) >= MAX_RECORDED_SIZES:
            found = NotRecorded("sizes", f"it has had {MAX_RECORDED_SIZES} other sizes")
        if found is not None:
            self._say(found)
            if len(known) < MAX_RECORDED_SIZES:
                known[sizes] = None
            return None
        if not self._finds_saved_tensors():
            self._say(NotRecorded("forward", "the forward call of its step is not recorded"))
            return None
        known[sizes] = self._recording(program, args)
        return known[sizes]

    def _finds_saved_tensors(self) -> bool:
        """False for a backward call whose saved tensors lie elsewhere at each call."""
        return self._facts.use is not GraphUse.BACKWARD or self._facts.step.is_recorded

    def _recording(self, program: PlanRunner, args: list[Any]) -> Call:
        call, facts = program.prepare(args), self._facts
        captured, static = program.program.captured, frozenset(facts.static)

        def model(args: list[Any]) -> list[Any]:
            if torch.cuda.is_current_stream_capturing():
                counters.count("cuda_graphs.recorded")
            else:
                counters.count("cuda_graphs.launched")
            results = call(args)
            args.clear()
            return results

        index = captured.device.index
        count = len(captured.module_outputs)
        recorded: Call = private.cudagraphify_impl(
            model,
            args,
            [at for at, arg in enumerate(args) if at in static and torch.is_tensor(arg)],
            device_index=torch.cuda.current_device() if index is None else index,
            stack_traces=list(facts.origins) if len(facts.origins) == count else [None] * count,
            is_backward=facts.use is GraphUse.BACKWARD,
            is_inference=facts.use is GraphUse.INFERENCE,
            placeholders=[
                private.PlaceholderInfo(f"argument {number}", None, [], None)
                for number in range(len(args))
            ],
            mutated_input_idxs=written_arguments(program.program),
        )
        _used.set()
        return recorded

    def _say(self, reason: NotRecorded) -> None:
        """Counts and logs why calls are not recorded, once for each kind of reason."""
        if reason.kind in self._said:
            return
        self._said.add(reason.kind)
        counters.count(f"cuda_graphs.not_recorded.{reason.kind}")
        level = logging.INFO if reason.kind == "device" else logging.WARNING
        _log.log(level, "kernelfarm: a graph is not recorded as a CUDA graph: %s", reason.text)


_used = threading.Event()


def drop_recordings() -> None:
    """Drops the calling thread's recordings; `torch._dynamo.reset()` calls it."""
    if _used.is_set() and can_record_in_this_thread():
        private.reset_cudagraph_trees()


def _note_backward() -> None:
    """States to the trees that other kernels end the step of a recorded forward graph."""
    manager = private.get_manager(torch.cuda.current_device(), create_if_none_exists=False)
    if manager is not None:
        manager.set_to_running_backward()
