"""Measures the candidates of a tuning subject on the device, with random inputs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import torch

from kernelfarm.client import counters
from kernelfarm.client.farm.access import FarmAccess
from kernelfarm.client.farm.caller_facts import facts_of
from kernelfarm.client.farm.wait_budget import WaitBudget
from kernelfarm.client.loaders.contract import DeviceSupport, LaunchTimer
from kernelfarm.client.process.exit import pause
from kernelfarm.client.programs.loaded import LoadedProgram
from kernelfarm.client.programs.product_subjects import Candidate, ProductSubject
from kernelfarm.client.programs.tiers import ProgramRequest, find_program
from kernelfarm.client.pytorch import private
from kernelfarm.client.pytorch.dtypes import dtype_to_torch
from kernelfarm.client.runtime.runner import PlanRunner
from kernelfarm.client.runtime.tuning import TimeLimit, fastest
from kernelfarm.client.runtime.user_kernels import span_elems
from kernelfarm.errors import DeadlineError, KernelfarmError, UnavailableError
from kernelfarm.ir.graph_ir import TensorType

_log = logging.getLogger("kernelfarm.client")

_EQUAL_MS: Final = 1e-6
"""The time that is reported of candidates that are the same program: reports compare times, so any
one does."""
_ROUNDS: Final = 4
"""Rounds in which the candidates take turns: calls run beside them."""
_QUEUED_CYCLES: Final = 1_000_000
"""A GPU waits so long before a launch, about 0.5 ms, while Python queues the launches: so the time
between two events is that of the kernels alone."""


@dataclass(frozen=True, slots=True)
class Measuring:
    """Where and for how long subjects of one graph are measured."""

    access: FarmAccess
    support: DeviceSupport
    timer: LaunchTimer
    limit_s: float

    def times_ms(self, subject: ProductSubject) -> tuple[float, ...]:
        """The median time of each candidate, 0 for one that cannot run.

        Raises:
            KernelfarmError: no candidate can run, or the farm does not answer.
        """
        loaded = [self._loaded(subject, candidate) for candidate in subject.candidates]
        programs = [program for program in loaded if program is not None]
        if len(programs) == len(loaded) and all(p.plan == programs[0].plan for p in programs):
            counters.count("tuning.products.same")
            return (_EQUAL_MS,) * len(loaded)
        if not programs:
            raise UnavailableError(f"{subject.name}: no candidate runs; expected at least one")
        found = iter(self._measured(subject, programs))
        return tuple(0.0 if program is None else next(found) for program in loaded)

    def _loaded(self, subject: ProductSubject, candidate: Candidate) -> LoadedProgram | None:
        """A candidate's program; None if there cannot be one.

        Raises:
            DeadlineError, UnavailableError: the farm does not answer; there may be one later.
        """
        graph = subject.fragment.captured.graph
        request = ProgramRequest(
            graph,
            candidate.key,
            self.support.target,
            candidate.options,
            facts_of(graph),
            self.support.loader,
        )
        try:
            with WaitBudget(self.access.settings.timeout_s).charged():
                return find_program(self.access, request)
        except (DeadlineError, UnavailableError):
            raise
        except KernelfarmError as error:
            counters.count(f"tuning.products.failures.{error.reason.lower()}")
            _log.info("kernelfarm: %s: a candidate is left out: %s", subject.name, error)
            return None

    def _measured(
        self, subject: ProductSubject, programs: Sequence[LoadedProgram]
    ) -> tuple[float, ...]:
        captured = subject.fragment.captured
        with torch.no_grad(), _own_stream(captured.device) as wait:
            args = _random_arguments(subject)
            launches = [
                _launch(PlanRunner(program.for_graph(captured, self.support.loader)), args)
                for program in programs
            ]

            def prepare() -> None:
                if pause(0):  # the process must not wait for this thread
                    raise UnavailableError("the process ends")
                wait()

            limit = TimeLimit(self.limit_s, rounds=_ROUNDS)
            return fastest(launches, prepare, self.timer, subject.name, limit).times_ms


def _launch(runner: PlanRunner, args: Sequence[torch.Tensor]) -> Callable[[], None]:
    def launch() -> None:
        try:
            runner([*args])
        except (RuntimeError, MemoryError) as error:  # torch's, for example without memory
            raise UnavailableError(f"a candidate does not run: {error}") from error

    return launch


@contextmanager
def _own_stream(device: torch.device) -> Iterator[Callable[[], None]]:
    """A stream of its own on a GPU, so that calls do not wait; gives what runs before a launch."""
    if device.type != "cuda":
        yield lambda: None
        return
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call] # torch lacks it
    with torch.cuda.device(device), torch.cuda.stream(stream):
        yield lambda: private._sleep(_QUEUED_CYCLES)


def _random_arguments(subject: ProductSubject) -> list[torch.Tensor]:
    """Tensors of a call, with the strides of the graph's, and random elements.

    Raises:
        UnavailableError: the device has no memory for them.
    """
    captured = subject.fragment.captured
    device, inputs = captured.device, subject.fragment.inputs
    kinds = zip(captured.sources, inputs, strict=True)
    draws = torch.Generator(device=device).manual_seed(0)
    try:
        return [random_tensor(k, device, draws) for at, k in kinds if isinstance(at, int)]
    except (RuntimeError, MemoryError) as error:
        raise UnavailableError(f"no memory for {len(inputs)} inputs: {error}") from error


def random_tensor(kind: TensorType, device: torch.device, draws: torch.Generator) -> torch.Tensor:
    """A tensor of a type with constant sizes and strides: normal, or small integers."""
    dtype = dtype_to_torch(kind.dtype)
    shape = tuple(extent.as_int() for extent in kind.shape)
    strides = tuple(stride.as_int() for stride in kind.strides or ())
    made = torch.empty_strided(shape, strides, dtype=dtype, device=device)
    if 0 in shape:
        return made
    # Elements that share an address are written once.
    memory = made.as_strided((span_elems(shape, strides),), (1,))
    if dtype.is_floating_point:
        memory.copy_(torch.empty_like(memory, dtype=_drawn(dtype)).normal_(generator=draws))
    elif dtype is torch.bool:
        memory.copy_(torch.empty_like(memory, dtype=torch.int8).random_(0, 2, generator=draws))
    else:
        memory.random_(0, 127, generator=draws)
    return made


def _drawn(dtype: torch.dtype) -> torch.dtype:
    """The type in which numbers are drawn: not all types have random numbers."""
    return dtype if dtype.itemsize >= 2 else torch.float16
