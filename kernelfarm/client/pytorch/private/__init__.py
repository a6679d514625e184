"""PyTorch's private names: nothing outside of this folder uses one by itself.

`NAMES` lists the names with their modules, their purposes and the versions of PyTorch that have
them. A name is imported at its first use, so that this module itself imports no private module. The
other modules of the folder have the functions that use private attributes of PyTorch's objects. To
support another version of PyTorch, run `tests/kernelfarm/client/pytorch/test_private.py` with it.

Private operators (`torch.ops.aten._...`) are not listed: captured graphs name them like all others.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from torch._C import _cuda_getCurrentRawStream as _cuda_getCurrentRawStream
    from torch._C import _cuda_getDevice as _cuda_getDevice
    from torch._C import _DisableAutocast as _DisableAutocast
    from torch._C import _get_cudnn_sdp_enabled as _get_cudnn_sdp_enabled
    from torch._C import _get_flash_sdp_enabled as _get_flash_sdp_enabled
    from torch._C import _get_math_sdp_enabled as _get_math_sdp_enabled
    from torch._C import _get_mem_efficient_sdp_enabled as _get_mem_efficient_sdp_enabled
    from torch._C import _has_mkldnn as _has_mkldnn
    from torch._C import _is_key_in_tls as _is_key_in_tls
    from torch._C import _len_torch_dispatch_stack as _len_torch_dispatch_stack
    from torch._C import _len_torch_function_stack as _len_torch_function_stack
    from torch._C import _set_deterministic_algorithms as _set_deterministic_algorithms
    from torch._C import _set_grad_enabled as _set_grad_enabled
    from torch._C._functorch import peek_interpreter_stack as peek_interpreter_stack
    from torch._dispatch.python import enable_python_dispatcher as enable_python_dispatcher
    from torch._dynamo import mark_dynamic as mark_dynamic
    from torch._dynamo.aot_compile_types import (
        BundledAOTAutogradSerializableCallable as BundledAOTAutogradSerializableCallable,
    )
    from torch._dynamo.aot_compile_types import SerializableCallable as SerializableCallable
    from torch._dynamo.backends.common import aot_autograd as aot_autograd
    from torch._dynamo.exc import (
        TensorifyScalarRestartAnalysis as TensorifyScalarRestartAnalysis,
    )
    from torch._dynamo.exc import TorchDynamoException as TorchDynamoException
    from torch._dynamo.guards import CheckFunctionManager as CheckFunctionManager
    from torch._dynamo.package import SystemInfo as SystemInfo
    from torch._dynamo.precompile_context import BackendCacheArtifact as BackendCacheArtifact
    from torch._dynamo.precompile_context import PrecompileContext as PrecompileContext
    from torch._dynamo.symbolic_convert import TensorifyState as TensorifyState
    from torch._functorch._aot_autograd.schemas import MutationType as MutationType
    from torch._functorch._aot_autograd.schemas import OutputAliasInfo as OutputAliasInfo
    from torch._functorch._aot_autograd.schemas import OutputType as OutputType
    from torch._functorch._aot_autograd.schemas import PlainTensorMeta as PlainTensorMeta
    from torch._functorch._aot_autograd.schemas import (
        SerializableAOTDispatchCompiler as SerializableAOTDispatchCompiler,
    )
    from torch._functorch._aot_autograd.schemas import ViewAndMutationMeta as ViewAndMutationMeta
    from torch._functorch._aot_autograd.utils import make_boxed_func as make_boxed_func
    from torch._functorch.partitioners import (
        min_cut_rematerialization_partition as min_cut_rematerialization_partition,
    )
    from torch._guards import TracingContext as TracingContext
    from torch._guards import detect_fake_mode as detect_fake_mode
    from torch._higher_order_ops.effects import has_effects as has_effects
    from torch._higher_order_ops.effects import new_token_tensor as new_token_tensor
    from torch._higher_order_ops.effects import with_effects as with_effects
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table as kernel_side_table
    from torch._inductor.cudagraph_trees import cudagraphify_impl as cudagraphify_impl
    from torch._inductor.cudagraph_trees import get_manager as get_manager
    from torch._inductor.cudagraph_trees import reset_cudagraph_trees as reset_cudagraph_trees
    from torch._inductor.cudagraph_utils import PlaceholderInfo as PlaceholderInfo
    from torch._inductor.output_code import OutputCode as OutputCode
    from torch._inductor.remote_cache import RemoteAOTAutogradCache as RemoteAOTAutogradCache
    from torch._inductor.remote_cache import RemoteAutotuneCache as RemoteAutotuneCache
    from torch._inductor.remote_cache import (
        RemoteBundledAutotuneCache as RemoteBundledAutotuneCache,
    )
    from torch._inductor.remote_cache import RemoteFxGraphCache as RemoteFxGraphCache
    from torch._inductor.utils import FORBIDDEN_CUDAGRAPH_OPS as FORBIDDEN_CUDAGRAPH_OPS
    from torch._inductor.utils import count_tangents as count_tangents
    from torch._logging._internal import trace_structured as trace_structured
    from torch._ops import HigherOrderOperator as HigherOrderOperator
    from torch._ops import OperatorBase as OperatorBase
    from torch._ops import OpOverload as OpOverload
    from torch._ops import OpOverloadPacket as OpOverloadPacket
    from torch._prims.rng_prims import run_and_save_rng_state as run_and_save_rng_state
    from torch._prims.rng_prims import run_with_rng_state as run_with_rng_state
    from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
    from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
    from torch._subclasses.fake_tensor import (
        in_kernel_invocation_manager as in_kernel_invocation_manager,
    )
    from torch._subclasses.fake_tensor import unset_fake_temporarily as unset_fake_temporarily
    from torch.fx.experimental.symbolic_shapes import ShapeEnv as ShapeEnv
    from torch.fx.experimental.symbolic_shapes import statically_known_true as statically_known_true
    from torch.fx.node import _get_qualified_name as _get_qualified_name
    from torch.fx.passes._tensorify_python_scalars import (
        tensorify_python_scalars as tensorify_python_scalars,
    )
    from torch.fx.passes.shape_prop import _extract_tensor_metadata as _extract_tensor_metadata
    from torch.nn.attention import _backend_from_string as _backend_from_string
    from torch.nn.attention import _sdpa_kernel as _sdpa_kernel
    from torch.utils import _pytree as _pytree
    from torch.utils import _triton as _triton
    from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
    from torch.utils._python_dispatch import (
        autograd_would_have_decomposed as autograd_would_have_decomposed,
    )

    _fused_sdp_choice: Callable[..., int]
    _empty_strided_cpu: Callable[..., torch.Tensor] | None
    _empty_strided_cuda: Callable[..., torch.Tensor] | None
    _reinterpret_tensor: Callable[..., torch.Tensor] | None
    mark_dynamo_propagated_dynamic_indices: Callable[[Any, set[int]], None] | None
    maybe_mark_dynamic_helper: Callable[[Any, set[int]], None] | None
    _sleep: Callable[[int], None]
    torch_variables: Any

VERSIONS = ("2.11", "2.12", "2.13")
"""The supported versions of PyTorch."""

LATE_IMPORTS = ("functorch.compile", "torch._inductor.debug", "torch.export._trace")
"""Modules that Dynamo and AOT Autograd import at their first graph, in about 0.1 s."""

_UNTIL_2_12 = ("2.11", "2.12")
_SINCE_2_13 = ("2.13",)


class PrivateName(NamedTuple):
    """A private name: its module, its purpose, and the versions of PyTorch that have it.

    If `is_optional`, a build of these versions may lack it (without CUDA, for example); the name is
    then None, as it is in other versions.
    """

    module: str
    purpose: str
    versions: tuple[str, ...] = VERSIONS
    is_optional: bool = False


_C = "torch._C"
_GUARDS = "torch._C._dynamo.guards"
_SCHEMAS = "torch._functorch._aot_autograd.schemas"
_WRAPPERS = "torch._functorch._aot_autograd.runtime_wrappers"
_TREES = "torch._inductor.cudagraph_trees"
_REMOTE_CACHES = "torch._inductor.remote_cache"
_FAKE = "torch._subclasses.fake_tensor"
_SHAPES = "torch.fx.experimental.symbolic_shapes"

NAMES: Mapping[str, PrivateName] = {
    # Tracing
    "aot_autograd": PrivateName("torch._dynamo.backends.common", "traces Dynamo graphs"),
    "min_cut_rematerialization_partition": PrivateName(
        "torch._functorch.partitioners", "chooses what a backward graph computes again"
    ),
    "make_boxed_func": PrivateName(
        "torch._functorch._aot_autograd.utils", "makes the eager function of a traced graph"
    ),
    "TracingContext": PrivateName("torch._guards", "has the guards and metadata of a trace"),
    "detect_fake_mode": PrivateName("torch._guards", "finds the fake mode of a trace"),
    "FakeTensor": PrivateName(_FAKE, "the type of Dynamo's example inputs"),
    "FakeTensorMode": PrivateName(_FAKE, "runs operators on shapes only"),
    "in_kernel_invocation_manager": PrivateName(_FAKE, "makes the tensors of repeated calls"),
    "unset_fake_temporarily": PrivateName(_FAKE, "leaves the fake mode for real tensors"),
    "enable_python_dispatcher": PrivateName(
        "torch._dispatch.python", "runs operators on shapes as in a trace"
    ),
    "TorchDispatchMode": PrivateName("torch.utils._python_dispatch", "sees operators as they run"),
    "autograd_would_have_decomposed": PrivateName(
        "torch.utils._python_dispatch", "whether an operator is decomposed in a trace"
    ),
    "_extract_tensor_metadata": PrivateName(
        "torch.fx.passes.shape_prop", "reads the memory format of a traced value"
    ),
    "torch_variables": PrivateName(
        "torch._dynamo.variables.torch", "the module whose is_exporting() value is corrected"
    ),
    "_is_exporting_flag": PrivateName("torch.compiler", "true only while torch.export runs"),
    "mark_dynamic": PrivateName("torch._dynamo", "declares the range of an extent"),
    "TorchDynamoException": PrivateName("torch._dynamo.exc", "what torch.export raises"),
    "tensorify_python_scalars": PrivateName(
        "torch.fx.passes._tensorify_python_scalars", "makes tensors of floats that vary"
    ),
    "TensorifyScalarRestartAnalysis": PrivateName(
        "torch._dynamo.exc", "asks Dynamo to make constants of floats"
    ),
    "TensorifyState": PrivateName(
        "torch._dynamo.symbolic_convert", "remembers which floats Dynamo makes constants of"
    ),
    "_pytree": PrivateName("torch.utils._pytree", "flattens the arguments of exported programs"),
    "_triton": PrivateName("torch.utils._triton", "knows whether Triton has a device"),
    # Captured graphs
    "OpOverload": PrivateName("torch._ops", "the type of operators in traced graphs"),
    "OpOverloadPacket": PrivateName("torch._ops", "the type of operators in Dynamo graphs"),
    "OperatorBase": PrivateName("torch._ops", "the key type of decomposition tables"),
    "HigherOrderOperator": PrivateName("torch._ops", "the type of wrappers around operators"),
    "with_effects": PrivateName("torch._higher_order_ops.effects", "orders effects by a token"),
    "has_effects": PrivateName("torch._higher_order_ops.effects", "finds operators with effects"),
    "kernel_side_table": PrivateName(
        "torch._higher_order_ops.triton_kernel_wrap", "has the Triton kernels of traced graphs"
    ),
    "new_token_tensor": PrivateName("torch._higher_order_ops.effects", "makes such a token"),
    "run_and_save_rng_state": PrivateName(
        "torch._prims.rng_prims", "draws random numbers and returns the generator's state"
    ),
    "run_with_rng_state": PrivateName("torch._prims.rng_prims", "draws from a saved state"),
    "ShapeEnv": PrivateName(_SHAPES, "has the ranges of and guards on symbolic sizes"),
    "statically_known_true": PrivateName(_SHAPES, "compares sizes without a guard"),
    "_get_qualified_name": PrivateName("torch.fx.node", "names the functions of a Dynamo graph"),
    "_dispatch_has_kernel_for_dispatch_key": PrivateName(_C, "finds composite operators"),
    # The calling convention of a trace
    "MutationType": PrivateName(_SCHEMAS, "how an input is mutated"),
    "OutputAliasInfo": PrivateName(_SCHEMAS, "what an output aliases"),
    "OutputType": PrivateName(_SCHEMAS, "the kind of such an alias"),
    "PlainTensorMeta": PrivateName(_SCHEMAS, "marks values that are not tensor subclasses"),
    "ViewAndMutationMeta": PrivateName(_SCHEMAS, "AOT Autograd's metadata of a trace"),
    "mark_dynamo_propagated_dynamic_indices": PrivateName(
        _WRAPPERS, "marks varying extents for Dynamo's later graphs", _SINCE_2_13
    ),
    "maybe_mark_dynamic_helper": PrivateName(_WRAPPERS, "its earlier name", _UNTIL_2_12),
    # Precompilation
    "SerializableCallable": PrivateName(
        "torch._dynamo.aot_compile_types", "what a backend returns to aot_compile"
    ),
    "BundledAOTAutogradSerializableCallable": PrivateName(
        "torch._dynamo.aot_compile_types", "stores a function of AOT Autograd"
    ),
    "SerializableAOTDispatchCompiler": PrivateName(
        _SCHEMAS, "marks compilers whose graphs AOT Autograd stores"
    ),
    "OutputCode": PrivateName("torch._inductor.output_code", "a graph that AOT Autograd stores"),
    "BackendCacheArtifact": PrivateName(
        "torch._dynamo.precompile_context", "what a backend adds to a precompiled package"
    ),
    "PrecompileContext": PrivateName(
        "torch._dynamo.precompile_context", "collects the contents of precompiled packages"
    ),
    # CUDA graphs
    "cudagraphify_impl": PrivateName(_TREES, "records and replays the calls of a function"),
    "get_manager": PrivateName(_TREES, "has the recordings of a device and thread"),
    "reset_cudagraph_trees": PrivateName(_TREES, "drops the recordings of a thread"),
    "_is_key_in_tls": PrivateName(_C, "whether a thread can have recordings"),
    # Inductor's own remote caches
    "RemoteFxGraphCache": PrivateName(_REMOTE_CACHES, "stores Inductor's graphs"),
    "RemoteAOTAutogradCache": PrivateName(_REMOTE_CACHES, "stores AOT Autograd's graphs"),
    "RemoteAutotuneCache": PrivateName(_REMOTE_CACHES, "stores the results of autotuning"),
    "RemoteBundledAutotuneCache": PrivateName(
        _REMOTE_CACHES, "stores the results of autotuning of one graph"
    ),
    "PlaceholderInfo": PrivateName(
        "torch._inductor.cudagraph_utils", "names an argument in messages"
    ),
    "FORBIDDEN_CUDAGRAPH_OPS": PrivateName(
        "torch._inductor.utils", "operators that no CUDA graph can record"
    ),
    "count_tangents": PrivateName(
        "torch._inductor.utils", "counts the tensors that a forward graph saved"
    ),
    "CheckFunctionManager": PrivateName(
        "torch._dynamo.guards", "lists the guards that PyTorch cannot store"
    ),
    "trace_structured": PrivateName("torch._logging._internal", "writes PyTorch's structured log"),
    "SystemInfo": PrivateName("torch._dynamo.package", "the software of a GPU, for packages"),
    # State that traces depend on
    "_len_torch_function_stack": PrivateName(_C, "detects torch function modes"),
    "_len_torch_dispatch_stack": PrivateName(_C, "detects dispatch modes"),
    "peek_interpreter_stack": PrivateName("torch._C._functorch", "detects functorch transforms"),
    "_get_flash_sdp_enabled": PrivateName(_C, "a setting of attention"),
    "_get_mem_efficient_sdp_enabled": PrivateName(_C, "a setting of attention"),
    "_get_math_sdp_enabled": PrivateName(_C, "a setting of attention"),
    "_get_cudnn_sdp_enabled": PrivateName(_C, "a setting of attention"),
    "_has_mkldnn": PrivateName(_C, "whether oneDNN is built in"),
    "_backend_from_string": PrivateName("torch.nn.attention", "chooses attention's kernel"),
    "_sdpa_kernel": PrivateName("torch.nn.attention", "chooses attention's kernel"),
    # Calls of programs
    "_set_grad_enabled": PrivateName(_C, "switches gradients off faster than torch.no_grad()"),
    "_set_deterministic_algorithms": PrivateName(
        _C, "chooses deterministic kernels, without the import of Inductor"
    ),
    "_DisableAutocast": PrivateName(_C, "leaves autocast faster than torch.autocast()"),
    "_fused_sdp_choice": PrivateName("torch", "the attention kernel that torch chooses"),
    "_reinterpret_tensor": PrivateName(_GUARDS, "makes views faster", is_optional=True),
    "_empty_strided_cpu": PrivateName(_GUARDS, "makes tensors faster", is_optional=True),
    "_empty_strided_cuda": PrivateName(_GUARDS, "makes tensors faster", is_optional=True),
    "_sleep": PrivateName("torch.cuda", "keeps a GPU busy while measured launches are queued"),
    "_cuda_getDevice": PrivateName(_C, "the current GPU", is_optional=True),
    "_cuda_getCurrentRawStream": PrivateName(_C, "the current stream", is_optional=True),
}
"""Every private name by its name in PyTorch; a module is named by its purpose."""

_MODULES = frozenset({"_pytree", "_triton", "torch_variables"})
"""The names that stand for modules."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in NAMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = _imported(name)
        return value


def _imported(name: str) -> Any:
    private = NAMES[name]
    if private.module.startswith("torch._functorch"):
        import_module("torch._dynamo")  # the two import each other, and only this order works
    module = module_of_torch(private.module)
    value = module if name in _MODULES else getattr(module, name, None)
    if value is None and not private.is_optional and private.versions == VERSIONS:
        raise ImportError(
            f"PyTorch {torch.__version__} has no {private.module}.{name}; kernelfarm supports"
            f" PyTorch {VERSIONS[0]} to {VERSIONS[-1]}"
        )
    return value


def module_of_torch(name: str) -> ModuleType:
    """A module of PyTorch, without the warnings of its own deprecated names at its import."""
    if name in sys.modules:
        return sys.modules[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return import_module(name)
