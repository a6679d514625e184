"""`torch.compile(model, backend="kernelfarm")`: PyTorch finds `kernelfarm` by its entry point.

AOT Autograd turns what Dynamo captured into functional graphs: one for inference, or a forward and
a backward graph when gradients are needed. Each is compiled by the farm for the device on which its
tensors lie; where the farm cannot help, the graph runs as it was captured.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._subclasses.fake_tensor import unset_fake_temporarily

from kernelfarm.client.capture import capture
from kernelfarm.client.eager import warn_eager
from kernelfarm.client.farm_client import FarmClient
from kernelfarm.client.loaders.of_device import device_support
from kernelfarm.client.plan_runtime import PlanRunner
from kernelfarm.client.program_store import ProgramStore
from kernelfarm.client.settings import ClientSettings, client_settings
from kernelfarm.errors import CallerError, KernelfarmError, UnavailableError

BoxedFunction = Callable[[list[Any]], Sequence[Any]]

_LATE_IMPORTS = ("functorch.compile", "torch._inductor.debug", "torch.export._trace")
"""What torch's Dynamo and AOT Autograd themselves import at their first graph, 0.1 s."""

PAUSE_AFTER_FAILURE_S = 10.0
"""After a farm did not answer, further graphs run eager at once for so long."""


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """What `torch.compile(..., options={...})` may say."""

    settings: ClientSettings
    is_deterministic: bool


def kernelfarm(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compiles a Dynamo graph through the farm; forward and backward where gradients are needed.

    `options`: `endpoint`, `timeout_s`, `strict` (bool), `deterministic` (bool). `mode`: `wait` or
    `strict`, as the option.

    Raises:
        CallerError: an option that does not exist, or a value that it cannot have.
        KernelfarmError: (strict only) the farm could not serve a graph.
    """
    compiler = _GraphCompiler(_backend_options(options or {}, mode))
    return aot_autograd(fw_compiler=compiler, bw_compiler=compiler)(gm, example_inputs)


def preload() -> None:
    """Imports, connects and finds the host's target, so that a first compile need not."""
    for name in _LATE_IMPORTS:
        import_module(name)
    settings = client_settings()
    device_support(torch.device("cpu"))
    with _lock:
        client = _client_for(settings)
    client.connect()


def _backend_options(options: Mapping[str, Any], mode: str | None) -> BackendOptions:
    known = {"endpoint", "timeout_s", "strict", "deterministic"}
    unknown = sorted(set(options) - known)
    if unknown:
        raise CallerError(f"options {unknown}; expected some of {sorted(known)}")
    stated = {key: options[key] for key in ("endpoint", "timeout_s") if key in options}
    if "strict" in options:
        stated["mode"] = "strict" if options["strict"] else "wait"
    if mode is not None:
        stated["mode"] = mode
    return BackendOptions(client_settings(**stated), bool(options.get("deterministic", False)))


class _GraphCompiler:
    """What AOT Autograd calls with each graph."""

    def __init__(self, options: BackendOptions) -> None:
        self._options = options

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> BoxedFunction:
        # AOT Autograd calls us in its fake mode; constants and buffers of ours are real.
        with unset_fake_temporarily():
            try:
                runner = self._compile(gm)
            except KernelfarmError as error:
                if self._options.settings.mode == "strict":
                    raise
                warn_eager(error, self._options.settings)
                runner = None
        if runner is None:
            return make_boxed_func(gm.forward)
        return _boxed(runner)

    def _compile(self, gm: fx.GraphModule) -> PlanRunner | None:
        captured = capture(gm)
        if captured.is_trivial:
            return None
        support = device_support(captured.device)
        client = self._client()
        try:
            shared = _store.program(client, captured, support, self._options.is_deterministic)
        except UnavailableError:
            _failures[client.settings.endpoint] = time.monotonic()
            raise
        return PlanRunner(shared.for_graph(captured, support.loader))

    def _client(self) -> FarmClient:
        settings = self._options.settings
        failed = _failures.get(settings.endpoint)
        is_recent = failed is not None and time.monotonic() - failed < PAUSE_AFTER_FAILURE_S
        if is_recent and settings.mode != "strict":
            raise UnavailableError(f"the farm at {settings.endpoint} did not answer just now")
        with _lock:
            return _client_for(settings)


def _boxed(runner: PlanRunner) -> BoxedFunction:
    def run(args: list[Any]) -> Sequence[Any]:
        results = runner(args)
        args.clear()  # the caller hands its references over, so that inputs can be freed
        return results

    run._boxed_call = True  # type: ignore[attr-defined] # AOT Autograd's mark of this convention
    return run


_lock = threading.Lock()
_clients: dict[tuple[int, ClientSettings], FarmClient] = {}
_failures: dict[str, float] = {}
_store = ProgramStore()


def _client_for(settings: ClientSettings) -> FarmClient:
    key = (os.getpid(), settings)  # a channel does not survive a fork
    client = _clients.get(key)
    if client is None:
        client = _clients[key] = FarmClient(settings)
    return client


def _forget_what_the_parent_waits_for() -> None:
    _store.forget_unfinished()
    _lock.release()


# A fork waits for the lock, so that the child's copy is not one that nobody will ever release.
os.register_at_fork(
    before=_lock.acquire,
    after_in_parent=_lock.release,
    after_in_child=_forget_what_the_parent_waits_for,
)
