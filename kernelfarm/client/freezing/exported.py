"""Freezes an exported program: its parameters and buffers do not change."""

from __future__ import annotations

from collections.abc import Sequence

from torch.export.graph_signature import InputKind

from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.capture.exported import ExportedModel, capture_exported, written_arguments
from kernelfarm.client.freezing.constants import FrozenConstants
from kernelfarm.client.freezing.frozen_graph import freeze_graph, is_for_gpu
from kernelfarm.client.freezing.spread_layouts import NotFrozenError
from kernelfarm.errors import CallerError
from kernelfarm.ir.product_choice import ProductChoice

_FROZEN = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


def freeze_exported(
    exported: ExportedModel,
    targets: Sequence[str],
    products: ProductChoice = ProductChoice.AUTO,
) -> tuple[CapturedGraph, FrozenConstants | None]:
    """The captured graph of a frozen model, and its constants, which calls pass behind the rest.

    A buffer that the model writes is not frozen. `products` are computed as the request says. The
    constants serve all `targets`, which are processors or GPUs: if these are several processors,
    weights are packed for the framework's library, because kernels of each target read them in an
    order of their own.

    Raises:
        CallerError: the model cannot be frozen.
    """
    for_gpus = [is_for_gpu(target) for target in targets]
    if len(set(for_gpus)) > 1:
        raise CallerError(
            f"freezing: targets {', '.join(targets)}; expected processors alone, or GPUs alone,"
            " whose constants differ"
        )
    program = exported.program
    written = set(written_arguments(program.graph_signature).values())
    parameters = [
        position
        for position, spec in enumerate(program.graph_signature.input_specs)
        if spec.kind in _FROZEN and position not in written
    ]
    target = targets[0] if len(set(targets)) == 1 or all(for_gpus) else ""
    products = products if target else ProductChoice.LIBRARY
    try:
        frozen = freeze_graph(program.graph_module, parameters, target, products)
    except NotFrozenError as reason:
        raise CallerError(f"freezing: {reason}") from reason
    if frozen is None:
        return exported.captured, None
    return capture_exported(program, frozen.module), FrozenConstants(frozen)
