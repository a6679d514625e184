"""Finds the program of one captured graph: at first, and again after each invalidation."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.farm.access import FarmAccess
from kernelfarm.client.farm.compile_options import CompileOptions
from kernelfarm.client.farm.wait_budget import WaitBudget, remaining_timeout
from kernelfarm.client.loaders.by_device import device_support
from kernelfarm.client.programs.cuda_graphs import CudaGraphs
from kernelfarm.client.programs.graph_runner import BoxedFunction, GraphRunner
from kernelfarm.client.programs.loaded import tuning_policy
from kernelfarm.client.programs.store import ProgramStore
from kernelfarm.client.programs.tiers import PrefetchedProgram
from kernelfarm.client.runtime.runner import PlanRunner
from kernelfarm.client.settings import ClientSettings
from kernelfarm.errors import CallerError

if TYPE_CHECKING:
    from kernelfarm.client.loaders.tuned_kernels import TuningFleet
    from kernelfarm.client.programs.tuned_products import TunedProducts


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """The options of `torch.compile(..., options={...})`, checked.

    `is_frozen`: the user promises that parameters and buffers do not change. `is_tuned`: the fleet
    chooses who computes each product.
    """

    settings: ClientSettings
    compiled: CompileOptions
    is_frozen: bool = False
    is_tuned: bool = False

    def __post_init__(self) -> None:
        """Checks that the options may be together.

        Raises:
            CallerError: they may not.
        """
        if self.is_tuned and self.settings.cuda_graphs:
            raise CallerError(
                "products 'tuned' with CUDA graphs: recorded calls keep the program that they were"
                " recorded with; expected another value of `products`, or no CUDA graphs"
            )


@dataclass(frozen=True, slots=True)
class FirstSearch:
    """The graph's wait budget, and the program that the farm sent with its trace, if it did."""

    budget: WaitBudget
    prefetched: PrefetchedProgram | None = None


class ProgramFinder:
    """Finds the program of one captured graph: at first, and again after each invalidation.

    Later searches have wait budgets of their own.
    """

    def __init__(
        self,
        captured: CapturedGraph,
        key: bytes,
        options: BackendOptions,
        first: FirstSearch,
        *,
        leaves_autocast: bool = False,
        drops_arguments: bool = False,
    ) -> None:
        self._captured = captured
        self._key = key
        self._options = options
        self._support = device_support(captured.device)
        self._first: FirstSearch | None = first
        self._leaves_autocast = leaves_autocast
        self._drops_arguments = drops_arguments
        self._tuning: TunedProducts | None = None

    def find(self) -> PlanRunner:
        """The program from the first tier that has it; that with the fleet's choices, if known.

        Raises:
            KernelfarmError: no tier has it.
        """
        search = self._first or FirstSearch(WaitBudget(self._options.settings.timeout_s))
        self._first = None
        with search.budget.charged():
            if self._tuning is None:
                return self._program(self._options.compiled, self._key, search.prefetched)
            found = self._tuning.program()
            if found is None:
                found = self._program(self._options.compiled, self._key, search.prefetched)
            self._tuning.go_on()
            return found

    def tune(self, runner: GraphRunner) -> None:
        """Lets the fleet's choices reach a runner, now or later, if the options ask for them."""
        if not self._options.is_tuned:
            return
        # Few processes tune products.
        from kernelfarm.client.programs.tuned_products import (  # noqa: PLC0415
            GraphToTune,
            TunedProducts,
        )

        self._tuning = TunedProducts(
            GraphToTune(self._captured, self._support, self._options.compiled),
            partial(access_to, self._options.settings),
            self._with_choices,
            runner.replace,
        )

    def _with_choices(self, options: CompileOptions) -> PlanRunner:
        # The other half of the wait is for the program without choices.
        limit_s = remaining_timeout(self._options.settings.timeout_s) / 2
        with WaitBudget(limit_s).charged():
            return self._program(options)

    def _program(
        self,
        options: CompileOptions,
        key: bytes | None = None,
        prefetched: PrefetchedProgram | None = None,
    ) -> PlanRunner:
        access = access_to(self._options.settings)
        loaded = _store.program(access, self._captured, self._support, options, key, prefetched)
        tuning = tuning_policy(access.settings, partial(_fleet, access))
        bound = loaded.for_graph(
            self._captured,
            self._support.loader,
            tuning=tuning,
            is_deterministic=options.is_deterministic,
        )
        return PlanRunner(
            bound,
            leaves_autocast=self._leaves_autocast,
            drops_arguments=self._drops_arguments,
        )


def _fleet(access: FarmAccess) -> TuningFleet:
    # Few programs have kernels that are tuned, and clients should start quickly.
    from kernelfarm.client.farm.tuning_tiers import TieredTuning  # noqa: PLC0415

    return TieredTuning(access)


def start_runner(
    eager: BoxedFunction,
    finder: ProgramFinder,
    settings: ClientSettings,
    cuda_graphs: CudaGraphs | None = None,
) -> GraphRunner:
    """The runner of a graph, whose program is there; in mode `swap` a thread fetches it.

    With `cuda_graphs`, its calls are recorded.

    Raises:
        KernelfarmError: no tier has the program.
    """
    runner = GraphRunner(eager, finder.find, settings, cuda_graphs)
    finder.tune(runner)
    if settings.mode == "swap":
        runner.fetch_in_background()
    else:
        runner.fetch()
    return runner


_lock = threading.Lock()
accesses: dict[tuple[int, ClientSettings], FarmAccess] = {}
"""What this process needs for each farm, by process id and settings."""
_store = ProgramStore()


def access_to(settings: ClientSettings) -> FarmAccess:
    """The access to the farm of these settings; the first call connects in the background."""
    key = (os.getpid(), settings)  # channels and threads do not survive a fork
    with _lock:
        access = accesses.get(key)
        if access is None:
            access = accesses[key] = FarmAccess(settings)
        return access


def _reset_after_fork() -> None:
    _store.drop_unfinished()
    _lock.release()


# A fork acquires the lock first, so that no thread of the parent holds the child's copy.
os.register_at_fork(
    before=_lock.acquire,
    after_in_parent=_lock.release,
    after_in_child=_reset_after_fork,
)
