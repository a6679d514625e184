"""Triton's compiler in this process: source text in, every stage out.

The module's text is not written to disk: it is registered with `linecache` under a name made of the
kernel's, which debug locations show too. Triton caches nothing, because the farm's cache, whose
keys are made of kernels, holds every result.
"""

from __future__ import annotations

import hashlib
import io
import linecache
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import codegen_svc.cost_estimate
import codegen_svc.emitters.triton
import codegen_svc.powers
from codegen_svc.backends.contract import ToolStatus
from codegen_svc.backends.stage_times import stage
from codegen_svc.backends.triton_early_launch import PROGRAMMATIC_LAUNCH, early_launch_stage
from codegen_svc.backends.triton_passes import AMD_SETTINGS, SHOW_PASSES, PassTexts, ttgir_stage
from codegen_svc.backends.wheel_digest import wheel_digest
from codegen_svc.emitters.triton.source import TritonSource
from codegen_svc.emitters.triton.user_module import TYPE_NAMES
from kernelfarm.dtypes import DType
from kernelfarm.errors import KernelRejectedError, UnavailableError
from kernelfarm.ir.artifact import StageText
from kernelfarm.ir.triton.user_kernel import Value
from kernelfarm.targets import GpuFacts

_TRITON_VERSION = "3.9.0"
_MESSAGE_CHARS = 600
_HEAD_CHARS = 100
_CHANGES = (*AMD_SETTINGS, SHOW_PASSES)
_REMEDY = f"pip install triton=={_TRITON_VERSION}"

# Registering a module's text, and Triton's parser, use tables of the whole process.
_parse_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class CompileTarget:
    """A chip as Triton names it: backend (`cuda`, `hip`), architecture, threads in a warp.

    `shown` is its name in messages, if that is another one. `has_programmatic_launches`: kernels
    wait themselves for the one ahead.
    """

    backend: str
    arch: int | str
    warp_size: int
    shown: str = ""
    has_programmatic_launches: bool = False

    @classmethod
    def of(cls, gpu: GpuFacts) -> CompileTarget:
        """The chip of a target's facts."""
        launches = gpu.has_programmatic_launches
        return cls(gpu.triton_backend, gpu.triton_arch, gpu.warp_size, "", launches)


@dataclass(frozen=True, slots=True)
class CompiledStages:
    """Stages by Triton's names, in order, and the metadata that the stages added."""

    stages: Mapping[str, str | bytes]
    facts: Mapping[str, Any]

    def stage_texts(self) -> tuple[StageText, ...]:
        """The stages in the form of artifacts."""
        return tuple(
            StageText(
                name,
                content.encode() if isinstance(content, str) else content,
                isinstance(content, str),
            )
            for name, content in self.stages.items()
        )


def compile_triton(
    source: TritonSource,
    target: CompileTarget,
    options: Mapping[str, Any],
    assumptions: Mapping[str, tuple[tuple[str, int], ...]] | None = None,
    last_stage: str | None = None,
    library_of: Callable[[str], str] | None = None,
) -> CompiledStages:
    """Every stage up to `last_stage` (the binary if None).

    `options` are Triton's, with the settings and `SHOW_PASSES` of `triton_passes`.
    `assumptions` gives attributes (`tt.divisibility`, 16) of arguments by name; the caller must
    guard those that the kernel does not prove. `library_of` gives the path of a replacement for a
    file of the vendor's mathematical functions.

    Raises:
        KernelRejectedError: the toolchain refuses the kernel.
        UnavailableError: triton is not installed.
    """
    triton = _triton()
    from triton.backends.compiler import GPUTarget  # noqa: PLC0415 - after the check above
    from triton.compiler import ASTSource  # noqa: PLC0415
    from triton.compiler.compiler import make_backend  # noqa: PLC0415

    gpu = GPUTarget(target.backend, target.arch, target.warp_size)
    function = _jit_function(source)
    positions = {name: position for position, (name, _) in enumerate(source.signature)}
    attrs = {
        (positions[name],): [list(f) for f in facts] for name, facts in (assumptions or {}).items()
    }
    constants = {name: _as_triton(triton, value) for name, value in source.constexprs}
    kind = _gluon_source() if source.is_gluon else ASTSource
    syntax = kind(function, dict(source.signature), constants, attrs)
    log = io.StringIO()
    try:
        with redirect_stdout(log):
            backend = make_backend(gpu)
            parsed = backend.parse_options(dict(options))
            if library_of is not None:
                files = tuple((name, library_of(path)) for name, path in parsed.extern_libs)
                # Options are frozen, and AMD's backend ignores libraries that options name.
                object.__setattr__(parsed, "extern_libs", files)
            changes = {name: options[name] for name in _CHANGES if name in options}
            changes[PROGRAMMATIC_LAUNCH] = target.has_programmatic_launches
            return _run_stages(triton, backend, syntax, parsed, last_stage, changes)
    except (
        RuntimeError,
        ValueError,
        TypeError,
        AssertionError,
        triton.errors.TritonError,
    ) as error:
        where = target.shown or f"{target.backend}:{target.arch}"
        if (cause := _memory_error(error)) is not None:
            raise cause from error
        raise KernelRejectedError(
            f"triton {triton.__version__} refuses kernel {source.name} for {where}:"
            f" {_shortened(str(error).strip())}"
        ) from error


def _shortened(message: str) -> str:
    """A message of Triton's with its begin and its end: source text may stand between them."""
    if len(message) <= _MESSAGE_CHARS:
        return message
    return f"{message[:_HEAD_CHARS]} ... {message[_HEAD_CHARS - _MESSAGE_CHARS :]}"


def _memory_error(error: BaseException | None) -> MemoryError | None:
    """The end of memory, if it caused an error: Triton reports it as an error of the source."""
    while error is not None and not isinstance(error, MemoryError):
        error = error.__cause__ or error.__context__
    return error


def _run_stages(
    triton: Any,
    backend: Any,
    syntax: Any,
    parsed: Any,
    last_stage: str | None,
    changes: Mapping[str, bool],
) -> CompiledStages:
    from triton._C.libtriton import ir  # noqa: PLC0415

    gpu = backend.target
    facts: dict[str, Any] = {"target": gpu, **parsed.__dict__, "triton_version": triton.__version__}
    passes: dict[str, Any] = {}
    backend.add_stages(passes, parsed, syntax.language)
    shown = PassTexts() if changes.get(SHOW_PASSES) else None
    if "ttgir" in passes and syntax.ext == "ttir":  # Gluon has passes of its own there
        settings = {name: value for name, value in changes.items() if name in AMD_SETTINGS}
        passes["ttgir"] = ttgir_stage(backend, parsed, settings, shown)
    if changes[PROGRAMMATIC_LAUNCH]:
        passes["ptx"] = early_launch_stage(passes["ptx"])
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    with stage("parse"), _parse_lock:
        module = syntax.make_ir(
            gpu,
            parsed,
            backend.get_codegen_implementation(parsed),
            backend.get_module_map(),
            context,
        )
    stages: dict[str, str | bytes] = {}
    for name, run in passes.items():
        with stage(name):
            module = run(module, facts)
            if name == "ttgir" and shown is not None:
                stages |= shown.stages()
            stages[name] = module if isinstance(module, str | bytes) else str(module)
        if name == last_stage:
            break
    return CompiledStages(stages, facts)


def _jit_function(source: TritonSource) -> Any:
    """The module's kernel as Triton's function object; executes only definitions."""
    file_name = f"{source.name}.py"
    lines = source.text.splitlines(keepends=True)
    namespace: dict[str, Any] = {"__name__": source.name}
    with _parse_lock:
        linecache.cache[file_name] = (len(source.text), None, lines, file_name)
        # Text of our own emitters, and checked definitions of users; a user's only in the sandbox.
        exec(compile(source.text, file_name, "exec"), namespace)
    return namespace[source.name]


def _as_triton(triton: Any, value: Value) -> Any:
    """A constant as Triton takes it."""
    if isinstance(value, DType):
        return triton.language.str_to_ty(TYPE_NAMES[value], None)
    if isinstance(value, tuple):
        return tuple(_as_triton(triton, item) for item in value)
    return value


def _gluon_source() -> Any:
    """Triton's class of sources in its language of layouts."""
    from triton.experimental.gluon._runtime import GluonASTSource  # noqa: PLC0415

    return GluonASTSource


def _triton() -> Any:
    try:
        import triton  # noqa: PLC0415 - optional at import time of the registry
    except ImportError as error:
        raise UnavailableError(f"triton is not installed; {_REMEDY}") from error
    return triton


@lru_cache(maxsize=1)
def triton_version() -> str:
    """Triton's version, empty if it is not installed."""
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        return ""


@lru_cache(maxsize=1)
def emitter_digest() -> str:
    """Hex digest of the code that every Triton backend shares."""
    emitters = Path(codegen_svc.emitters.triton.__file__ or "").parent
    files = [
        *sorted(emitters.glob("*.py")),
        *sorted(Path(__file__).parent.glob("triton_*.py")),
        Path(codegen_svc.cost_estimate.__file__ or ""),  # decides whether functions are called
        Path(codegen_svc.powers.__file__ or ""),
    ]
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()


def backend_fingerprint(backend_file: str, *more: str) -> str:
    """Hex digest over Triton, its environment, the code that Triton backends share, and a backend.

    `backend_file` is a file in the backend's folder, `more` are digests of its other tools.

    Raises:
        UnavailableError: triton is not installed.
    """
    folder = Path(backend_file).parent
    own = b"\0".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    wheel = wheel_digest("triton", _REMEDY)
    parts = [wheel, *triton_environment(), emitter_digest(), hashlib.sha256(own).hexdigest(), *more]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def triton_environment() -> tuple[str, ...]:
    """`NAME=VALUE` of the environment variables that change the code which Triton or LLVM makes.

    If a value names a file, the file's digest takes its place.

    Raises:
        UnavailableError: triton is not installed.
    """
    _triton()
    from triton import knobs  # noqa: PLC0415 - after the check above
    from triton._C.libtriton import get_cache_invalidating_env_vars  # noqa: PLC0415

    stated = dict(get_cache_invalidating_env_vars())
    for group in (knobs.compilation, knobs.language, knobs.nvidia, knobs.amd, knobs.runtime):
        names = (knob.key for knob in group.knob_descriptors.values())
        stated |= {name: os.environ[name] for name in names if name in os.environ}
    return tuple(f"{name}={_value_or_digest(value)}" for name, value in sorted(stated.items()))


def _value_or_digest(value: str) -> str:
    path = Path(value)
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else value


def triton_status() -> ToolStatus:
    """Triton as found in this environment."""
    version = triton_version()
    is_found = version == _TRITON_VERSION
    return ToolStatus(
        "triton", version, is_found, is_required=True, remedy="" if is_found else _REMEDY
    )
