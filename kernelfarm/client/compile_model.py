"""`kernelfarm.compile(model, args, targets=[...])`: compiles for devices of any machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from kernelfarm.client.capture.exported import ExportedModel, export_model
from kernelfarm.client.farm.client import FarmClient, OnProgress
from kernelfarm.client.farm.compile_options import CompileOptions
from kernelfarm.client.farm.compiled_program import CompiledProgram, StageContent
from kernelfarm.client.freezing.constants import FrozenConstants
from kernelfarm.client.freezing.exported import freeze_exported
from kernelfarm.client.freezing.frozen_graph import can_be_frozen
from kernelfarm.client.loaders.by_device import device_support
from kernelfarm.client.programs.loaded import load_program, tuning_policy
from kernelfarm.client.programs.saved_files import save_programs
from kernelfarm.client.pytorch.deterministic import is_determinism_wanted
from kernelfarm.client.runtime.runner import PlanRunner
from kernelfarm.client.settings import client_settings
from kernelfarm.errors import CallerError
from kernelfarm.ir.graph_ir import Graph
from kernelfarm.ir.product_choice import ProductChoice

if TYPE_CHECKING:
    from kernelfarm.client.farm.tuning_client import FarmTuning

_DEFAULTS = CompileOptions()


class CompiledModel:
    """A model compiled for several targets.

    `programs` maps each target to a program with its plan, artifacts and stages; the contents are
    read from the farm on demand. The model can be called if this machine has a device for one of
    the targets.
    """

    def __init__(
        self,
        exported: ExportedModel,
        programs: Sequence[CompiledProgram],
        client: FarmClient,
        constants: FrozenConstants | None = None,
        *,
        is_deterministic: bool = False,
    ):
        self.programs: dict[str, CompiledProgram] = {p.target: p for p in programs}
        self._exported = exported
        self._constants = constants
        self._client = client
        self._is_deterministic = is_deterministic
        self._runner: PlanRunner | None = None

    @property
    def graph(self) -> Graph:
        """The captured graph."""
        return self._exported.captured.graph

    def stage_texts(self, target: str) -> dict[str, str]:
        """The program's text stages by name: `aten`, `prims`, `loops`, `plan`, `report`.

        Raises:
            CallerError: the model was not compiled for this target.
        """
        return self._texts(self._program(target).stages)

    def kernel_texts(self, target: str, kernel: str) -> dict[str, str]:
        """The text stages of one kernel's general variant by name, source first.

        Raises:
            CallerError: the model was not compiled for this target, or has no such kernel.
        """
        program = self._program(target)
        names = program.plan.kernel_names
        if kernel not in names:
            raise CallerError(f"no kernel {kernel!r}; expected one of {', '.join(names)}")
        return self._texts(program.kernels[names.index(kernel)][-1].stages)

    def save(self, directory: Path | str) -> Path:
        """Writes every artifact and stage below the directory; returns the manifest's path."""
        return save_programs(self.programs.values(), self._client, Path(directory))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the model on this machine.

        Raises:
            CallerError: this machine has no device for the targets, or an argument does not fit.
        """
        if self._runner is None:
            self._runner = self._make_runner()
        flat = self._exported.flat_args(args, kwargs)
        with torch.no_grad():
            made = () if self._constants is None else self._constants.of(flat)
            return self._exported.results(self._runner([*flat, *made]), flat)

    def _make_runner(self) -> PlanRunner:
        captured = self._exported.captured
        support = device_support(captured.device)
        program = self._program(support.target)
        loaded = load_program(self._client, program, support.loader)
        bound = loaded.for_graph(
            captured,
            support.loader,
            tuning=tuning_policy(self._client.settings, self._fleet),
            is_deterministic=self._is_deterministic,
        )
        return PlanRunner(bound, is_checked=True)

    def _fleet(self) -> FarmTuning:
        # Few programs have kernels that are tuned.
        from kernelfarm.client.farm.tuning_client import FarmTuning  # noqa: PLC0415

        return FarmTuning(self._client)

    def _program(self, target: str) -> CompiledProgram:
        program = self.programs.get(target)
        if program is None:
            raise CallerError(
                f"not compiled for {target}; expected one of {', '.join(self.programs)}"
            )
        return program

    def _texts(self, stages: Sequence[StageContent]) -> dict[str, str]:
        texts = [stage for stage in stages if stage.is_text]
        contents = self._client.read_blobs([stage.sha256 for stage in texts])
        return {s.name: contents[s.sha256].decode("utf-8") for s in texts}


def compile_model(  # noqa: PLR0913 (the public entry point: all but two have defaults)
    model: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    targets: Sequence[str] | None = None,
    dynamic_shapes: Any = None,
    endpoint: str | None = None,
    timeout_s: float | None = None,
    is_deterministic: bool | None = None,
    fallback_random: bool = False,
    products: ProductChoice = ProductChoice.AUTO,
    is_frozen: bool = False,
    on_progress: OnProgress | None = None,
) -> CompiledModel:
    """A model or function, captured by `torch.export` and compiled by the farm for each target.

    Without `targets`, the farm compiles it for the host's CPU. `dynamic_shapes` is passed to
    `torch.export`. `is_deterministic`, `fallback_random` and `products` are described in
    `CompileOptions`; without `is_deterministic`, PyTorch's own flag decides. `is_frozen`:
    parameters and buffers do not change, so what depends on them alone is computed once, for
    processors like this one.

    Raises:
        CallerError: the model is to be frozen, and cannot be, for these targets.
        UnsupportedGraphError: the model cannot be captured as one graph.
        KernelfarmError: the farm does not answer or refuses; the message says why.
    """
    exported = export_model(model, args, kwargs, dynamic_shapes)
    if is_deterministic is None:
        is_deterministic = is_determinism_wanted()
    return compile_exported(
        exported,
        targets=targets,
        client=connect(endpoint, timeout_s),
        options=CompileOptions(is_deterministic, fallback_random, products),
        is_frozen=is_frozen,
        on_progress=on_progress,
    )


def compile_exported(
    exported: ExportedModel,
    *,
    targets: Sequence[str] | None,
    client: FarmClient,
    options: CompileOptions = _DEFAULTS,
    is_frozen: bool = False,
    on_progress: OnProgress | None = None,
) -> CompiledModel:
    """An exported program, compiled by the farm for each target."""
    target_names = list(targets) if targets else [device_support(torch.device("cpu")).target]
    constants = None
    if is_frozen:
        others = [name for name in target_names if not can_be_frozen(name)]
        if others:
            raise CallerError(f"freezing: target {others[0]}; expected processors or GPUs")
        captured, constants = freeze_exported(exported, target_names, options.products)
        exported = replace(exported, captured=captured)
    programs = client.compile(
        exported.captured.graph, target_names, options=options, on_progress=on_progress
    )
    return CompiledModel(
        exported, programs, client, constants, is_deterministic=options.is_deterministic
    )


def connect(endpoint: str | None = None, timeout_s: float | None = None) -> FarmClient:
    """A client of the farm at `endpoint`, or of the settings' farm if there is none."""
    stated = {"endpoint": endpoint, "timeout_s": timeout_s}
    given = {key: value for key, value in stated.items() if value is not None}
    return FarmClient(client_settings(**given))
