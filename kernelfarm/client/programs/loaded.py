"""A program with its kernels loaded into this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.farm.compiled_program import CompiledProgram
from kernelfarm.client.farm.invalidation_state import InvalidationState
from kernelfarm.client.loaders.contract import Loader
from kernelfarm.client.loaders.variants import LoadedVariant
from kernelfarm.client.programs.kernels import BlobReader, load_kernels
from kernelfarm.client.runtime.program import (
    DEFAULT_TUNING,
    BoundProgram,
    TuningPolicy,
    Validity,
)
from kernelfarm.ir.program_ir import Plan
from kernelfarm.signing import Manifest

if TYPE_CHECKING:
    from kernelfarm.client.loaders.tuned_kernels import TuningFleet
    from kernelfarm.client.settings import ClientSettings


@dataclass(frozen=True, slots=True)
class LoadedProgram:
    """A plan with its loaded kernels, for every captured graph with the same canonical form.

    `tags` are the client's own. `known` are the invalidations that the client knew when it found
    the program. `validity` is shared with all bound programs.
    """

    plan: Plan
    kernels: tuple[tuple[LoadedVariant, ...], ...]
    manifest: Manifest
    tags: tuple[str, ...] = ()
    known: InvalidationState | None = None
    validity: Validity = field(default_factory=Validity, compare=False)

    def for_graph(
        self,
        captured: CapturedGraph,
        loader: Loader,
        *,
        tuning: TuningPolicy = DEFAULT_TUNING,
        is_deterministic: bool = False,
    ) -> BoundProgram:
        """The program bound to one captured graph; the options as in `BoundProgram`."""
        return BoundProgram(
            self.plan,
            self.kernels,
            captured,
            loader,
            self.validity,
            tuning,
            is_deterministic,
        )

    def is_stale(self, now: InvalidationState) -> bool:
        """True if the program was invalidated, or may have been without this client's knowledge."""
        if now.is_stale(self.manifest, self.tags):
            return True
        has_all_since = self.known is not None and (
            (self.known.incarnation, self.known.base) == (now.incarnation, now.base)
        )
        is_newer = self.manifest.incarnation == now.incarnation and self.manifest.epoch >= now.base
        return not (has_all_since or is_newer)

    @property
    def has_expired(self) -> bool:
        """True if the manifest's validity has ended."""
        return self.manifest.not_after_s < time.time()


def load_program(
    reader: BlobReader,
    compiled: CompiledProgram,
    loader: Loader,
    *,
    tags: tuple[str, ...] = (),
    known: InvalidationState | None = None,
) -> LoadedProgram:
    """A verified program with its binaries fetched and loaded.

    Raises:
        NotRunnableHereError: an artifact is a stub.
        UnavailableError: the device refuses a binary.
    """
    kernels = load_kernels(reader, compiled, loader)
    return LoadedProgram(compiled.plan, kernels, compiled.manifest, tags, known)


def tuning_policy(settings: ClientSettings, fleet: Callable[[], TuningFleet]) -> TuningPolicy:
    """How autotuned kernels choose their configurations, by the client's settings.

    `fleet` makes what the settings may ask: few programs have such kernels.
    """
    if settings.autotune == "first":
        return TuningPolicy(limit_s=0.0)
    if settings.autotune == "measure":
        return TuningPolicy(settings.autotune_limit_s)
    return TuningPolicy(settings.autotune_limit_s, fleet)
