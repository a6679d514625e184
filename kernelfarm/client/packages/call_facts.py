"""What a process knows of a call before it traces: the question by which a package is found.

The parts of the question state versions, options and PyTorch's state. Some are digests of facts:
the code that would be traced, the modules with their plain attributes, parameters and buffers, and
the inputs. A package with varying sizes has another address, in which no extent is stated; the
header of the package has the ranges.
"""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any

import torch

from kernelfarm.client.farm.compile_options import CompileOptions
from kernelfarm.client.loaders.by_device import device_support
from kernelfarm.client.packages.code_facts import TooMuchCodeError, code_facts
from kernelfarm.client.packages.described_values import described
from kernelfarm.client.packages.plain_values import NOT_PLAIN, text_of
from kernelfarm.client.pytorch.private import _pytree
from kernelfarm.client.pytorch.private.packages import system_text
from kernelfarm.client.pytorch.private.tracing import storage_identity
from kernelfarm.client.traces.sizes import NotCoveredError
from kernelfarm.client.traces.torch_state import CAPTURE_VERSION, trace_state
from kernelfarm.digest import MAX_PART_CHARS, trace_digest
from kernelfarm.ir.graph_ir import ABI_VERSION

FORMAT = 1
"""Increase it after a change of packages or of their addresses."""

_DEVICES = ("cpu", "cuda")


@dataclass(frozen=True, slots=True)
class Question:
    """A call, as packages are asked for it.

    `parts` are the parts of the digest; `facts` are what some of them are digests of. `extents` are
    the shapes of the tensors among the inputs, by their names.
    """

    parts: Mapping[str, str]
    facts: Mapping[str, str]
    extents: Mapping[str, tuple[int, ...]]

    @property
    def digest(self) -> bytes:
        """The address of the package."""
        return trace_digest(self.parts)

    def varying(self) -> Question:
        """The question for a package of the same call whose sizes may vary."""
        facts = {name: _without_sizes(name, text) for name, text in self.facts.items()}
        inputs = _digest_of(_of_kind(facts, _INPUT))
        return replace(
            self, facts=facts, parts={**self.parts, "inputs": inputs, "sizes": "varying"}
        )


def question_of(
    call: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: CompileOptions,
    device: torch.device | None = None,
) -> Question:
    """The question for a call of a module or function.

    `device` is where tensors of device `meta` will be when the call is made.

    Raises:
        NotCoveredError: no package can be found for such a call; the message is the reason.
    """
    state = dict(line.split(" ", 1) for line in trace_state())
    is_module = isinstance(call, torch.nn.Module)
    if not is_module and not isinstance(call, FunctionType):
        raise NotCoveredError("neither a module nor a function")
    tensors = _Tensors(device)
    modules = _module_facts(call, tensors) if isinstance(call, torch.nn.Module) else {}
    inputs, extents = _input_facts(args, kwargs, tensors)
    code = _code_facts(call)
    found_device = tensors.device()
    named: Any = type(call) if is_module else call
    parts = {
        "package": f"{FORMAT} of capture {CAPTURE_VERSION} of {ABI_VERSION}",
        "python": f"{platform.python_version()} {sys.implementation.cache_tag}",
        **{name: text for name, text in state.items() if name != "capture"},
        "target": device_support(found_device).target,
        "options": ", ".join(f"{name}={value}" for name, value in options.pairs()),
        "function": _short(f"{named.__module__}:{named.__qualname__}"),
        "code": _digest_of(code),
        "modules": _digest_of(modules),
        "inputs": _digest_of(inputs),
        "sizes": "stated",
    }
    if found_device.type == "cuda":
        parts["system"] = _short(system_text())
    return Question(parts, {**code, **modules, **inputs}, extents)


_INPUT = "input "
_SIZES = ", of shape "


class _Tensors:
    """Describes tensors, and which of them share memory."""

    def __init__(self, planned: torch.device | None) -> None:
        if planned is not None and planned.type == "cuda" and planned.index is None:
            planned = torch.device("cuda", torch.cuda.current_device())
        self._planned = planned
        self._storages: dict[int, int] = {}
        self._devices: set[torch.device] = set()

    def text(self, tensor: torch.Tensor) -> str:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            raise NotCoveredError(f"a tensor of class {type(tensor).__name__}")
        if tensor.layout is not torch.strided:
            raise NotCoveredError("a tensor of another layout")
        device = self._planned if self._planned and tensor.is_meta else tensor.device
        if device.type != "cpu" or tensor.dim():
            self._devices.add(device)
        kind = type(tensor).__name__
        number = self._storages.setdefault(storage_identity(tensor), len(self._storages))
        facts = (tensor.dtype, device.type, f"grad={tensor.requires_grad}")
        flags = f"{tensor.is_conj()} {tensor.is_neg()} {tensor.is_inference()}"
        is_dense = tensor.is_contiguous()
        rank = f"{tensor.dim()} axes {'in order' if is_dense else 'strided'}"
        shape = f"{tuple(tensor.shape)}{'' if is_dense else f' strides {tensor.stride()}'}"
        text = f"{kind} {' '.join(map(str, facts))} {flags} memory {number}, {rank}"
        return f"{text}{_SIZES}{shape}"

    def device(self) -> torch.device:
        if len(self._devices) > 1:
            raise NotCoveredError("several devices")
        found = next(iter(self._devices), torch.device("cpu"))
        if found.type not in _DEVICES:
            raise NotCoveredError(f"device {found.type}")
        return found


def _module_facts(model: torch.nn.Module, tensors: _Tensors) -> dict[str, str]:
    facts = {}
    for path, module in model.named_modules():
        named = f"{type(module).__module__}:{type(module).__qualname__}"
        plain = (f"{name}={text}" for name, text in _attributes(module))
        facts[f"module {path}"] = "; ".join((named, *plain))
    for kind, found in (
        ("parameter", model.named_parameters(remove_duplicate=False)),
        ("buffer", model.named_buffers(remove_duplicate=False)),
    ):
        for path, tensor in found:
            facts[f"{kind} {path}"] = tensors.text(tensor)
    return facts


_OWN = frozenset(vars(torch.nn.Module()))
"""What each module has; `training` is the only one of them that tracing may read."""


def _attributes(module: torch.nn.Module) -> Iterator[tuple[str, str]]:
    """The attributes of a module, other than its tensors and modules."""
    for name in sorted(vars(module)):
        value = vars(module)[name]
        if "hooks" in name and name in _OWN and value:
            raise NotCoveredError("hooks")
        # PyTorch adds private attributes to modules; it has guards on the plain ones that it reads.
        is_private = name.startswith("_") and text_of(value) != NOT_PLAIN
        if name == "training" or not (name in _OWN or is_private):
            yield name, described(value)


def _input_facts(
    args: Sequence[Any], kwargs: Mapping[str, Any], tensors: _Tensors
) -> tuple[dict[str, str], dict[str, tuple[int, ...]]]:
    leaves, structure = _pytree.tree_flatten_with_path((tuple(args), dict(kwargs)))
    facts = {f"{_INPUT}structure": str(structure)}
    extents = {}
    for path, value in leaves:
        name = f"{_INPUT}{_pytree.keystr(path)}"
        if isinstance(value, torch.Tensor):
            facts[name] = tensors.text(value)
            extents[name] = tuple(value.shape)
        else:
            facts[name] = text_of(value)
        if facts[name] == NOT_PLAIN:
            raise NotCoveredError(f"input {type(value).__name__}")
    return facts, extents


def input_names(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors among the inputs, by their names in a question."""
    leaves, _ = _pytree.tree_flatten_with_path((tuple(args), dict(kwargs)))
    return {
        f"{_INPUT}{_pytree.keystr(path)}": value
        for path, value in leaves
        if isinstance(value, torch.Tensor)
    }


def _code_facts(call: Any) -> dict[str, str]:
    is_module = isinstance(call, torch.nn.Module)
    modules = list(call.modules()) if is_module else []
    functions = [type(module).forward for module in modules] if is_module else [call]
    # Attributes may be functions, also in place of `forward`.
    functions += [value for module in modules for value in vars(module).values()]
    try:
        return code_facts(functions, {type(module) for module in modules})
    except TooMuchCodeError:
        raise NotCoveredError("too much code") from None


def _without_sizes(name: str, text: str) -> str:
    """The fact of an input without its extents."""
    return text.partition(_SIZES)[0] if name.startswith(_INPUT) else text


def _of_kind(facts: Mapping[str, str], kind: str) -> dict[str, str]:
    return {name: text for name, text in facts.items() if name.startswith(kind)}


def _digest_of(facts: Mapping[str, str]) -> str:
    hasher = hashlib.sha256()
    for item in sorted(facts.items()):
        for text in item:
            data = text.encode("utf-8", "surrogatepass")
            hasher.update(b"%d:" % len(data) + data)
    return f"sha256 {hasher.hexdigest()}"


def _short(text: str) -> str:
    is_plain = len(text) <= MAX_PART_CHARS and text.isascii() and text.isprintable()
    return text if is_plain else f"sha256 {hashlib.sha256(text.encode()).hexdigest()}"
