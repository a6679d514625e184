"""`kernelfarm.packaged(model)`: `torch.compile`, whose calls look for a package before they trace.

A call of new types and sizes asks this user's disk, then the farm, for the package of this call. If
there is none that may be used, `torch.compile` compiles the model as usual. A client with a key for
traces (`KERNELFARM_TRACE_KEY_FILE`) makes and publishes the package that it did not find.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from kernelfarm.client import counters
from kernelfarm.client.farm.access import FarmAccess
from kernelfarm.client.packages.call_facts import Question, question_of
from kernelfarm.client.packages.checks import PackageRefusedError
from kernelfarm.client.packages.load import LoadedPackage, load_package
from kernelfarm.client.packages.make import ModelCall, make_package
from kernelfarm.client.packages.prefetch import PackagePrefetch
from kernelfarm.client.packages.shared import SharedPackages, check_opted_in
from kernelfarm.client.process.garbage_collection import no_collections
from kernelfarm.client.programs.finder import access_to
from kernelfarm.client.programs.stated_options import (
    check_fits_packages,
    compile_options,
    stated_settings,
    with_mode,
)
from kernelfarm.client.pytorch.deterministic import is_determinism_wanted
from kernelfarm.client.pytorch.private import _pytree
from kernelfarm.client.pytorch.private.packages import has_packages
from kernelfarm.client.settings import client_settings
from kernelfarm.client.traces.sizes import NotCoveredError

_MOST_PACKAGES = 64
"""Packages, and calls without a package, that one model remembers; later calls are compiled."""


def packaged(
    model: Callable[..., Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
    dynamic: bool | None = None,
) -> Callable[..., Any]:
    """`torch.compile(model, backend="kernelfarm")`, which first looks for a package of each call.

    `options` and `mode` are those of the backend. Without `KERNELFARM_PACKAGES=trusted`, this is
    `torch.compile` alone.

    Raises:
        CallerError: an option is not valid, the keys of publishers are not pinned, or the model is
            to be frozen or tuned: packages cannot hold what is computed from parameters, or what
            the fleet chooses later.
    """
    stated = with_mode(options, mode)
    settings = client_settings(**stated_settings(stated))
    compile_options(stated)
    if settings.packages == "off":
        return _compiled(model, stated, dynamic)
    check_fits_packages(stated, "no packages")
    check_opted_in(settings)
    if not has_packages():
        warnings.warn(
            f"kernelfarm: PyTorch {torch.__version__} has no packages; expected 2.11 or newer: the"
            " model is compiled without one",
            PackageWarning,
            stacklevel=2,
        )
        return _compiled(model, stated, dynamic)
    return PackagedModel(model, stated, dynamic)


def prefetch(
    model: Callable[..., Any], *args: Any, device: str | None = None, **kwargs: Any
) -> None:
    """Fetches the package, program and kernels of a call of `packaged(model)` in the background.

    See `PackagedModel.prefetch`. Does nothing for a model that uses no packages.
    """
    if isinstance(model, PackagedModel):
        model.prefetch(*args, device=device, **kwargs)


def _compiled(
    model: Callable[..., Any], options: Mapping[str, Any], dynamic: bool | None
) -> Callable[..., Any]:
    return torch.compile(
        model, backend="kernelfarm", options=dict(options) or None, dynamic=dynamic
    )


class PackageWarning(UserWarning):
    """A model runs without packages, though they are wanted."""


class PackagedModel:
    """A model whose calls run packages; attributes are those of the model.

    `torch.compile` is called when a call has no package: it imports what only tracing needs.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        options: Mapping[str, Any],
        dynamic: bool | None,
    ) -> None:
        self._model = model
        self._compiled: Callable[..., Any] | None = None
        self._options = options
        self._dynamic = dynamic
        self._first = (model,) if isinstance(model, torch.nn.Module) else ()
        self._loaded: tuple[LoadedPackage, ...] = ()
        self._asked: set[object] = set()
        self._prefetches: list[PackagePrefetch] = []
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        if name == "_model":  # while a copy is made
            raise AttributeError(name)
        return getattr(self._model, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the model."""
        for loaded in self._loaded:
            if loaded.holds(*self._first, *args, **kwargs):
                return loaded.run(*self._first, *args, **kwargs)
        if len(self._asked) < _MOST_PACKAGES:
            loaded_now = self._ask(args, kwargs)
            if loaded_now is not None:
                return loaded_now.run(*self._first, *args, **kwargs)
        if self._compiled is None:
            self._compiled = _compiled(self._model, self._options, self._dynamic)
        return self._compiled(*args, **kwargs)

    def _ask(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> LoadedPackage | None:
        """The package of a call that was not asked for before; else None."""
        signature = _signature(args, kwargs)
        with self._lock:
            if signature in self._asked:
                return self._loaded_meanwhile(args, kwargs)
            self._asked.add(signature)
            loaded = self._found(args, kwargs)
            if loaded is not None:
                self._loaded = (loaded, *self._loaded)
            return loaded

    def prefetch(self, *args: Any, device: str | None = None, **kwargs: Any) -> None:
        """Fetches the package of a call in the background; the call waits for it.

        The model and the arguments need no values: they may be on the device `meta` while `device`
        says where they will be. Gradient mode and autocast must be those of the call.
        """
        planned = None if device is None else torch.device(device)
        questions = self._questions(args, kwargs, planned)
        if questions:
            self._prefetches.append(PackagePrefetch(self._access(), questions))

    def _loaded_meanwhile(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> LoadedPackage | None:
        """The package that another thread has loaded for such a call."""
        fitting = (found for found in self._loaded if found.holds(*self._first, *args, **kwargs))
        return next(fitting, None)

    def _access(self) -> FarmAccess:
        return access_to(client_settings(**stated_settings(self._options)))

    def _questions(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        planned: torch.device | None = None,
    ) -> tuple[Question, ...]:
        """The questions for a call: the package of these sizes, then one whose sizes vary."""
        options = compile_options(self._options)
        try:
            question = question_of(self._model, args, kwargs, options, planned)
        except NotCoveredError as reason:
            counters.count(f"packages.not_covered.{reason}")
            return ()
        varying = question.varying()
        is_varying = bool(ModelCall(self._model, args, kwargs, self._dynamic).ranges())
        return (varying, question) if is_varying else (question, varying)

    def _found(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> LoadedPackage | None:
        access = self._access()
        with no_collections():  # but not while a package is made, which takes as long as tracing
            asked = [SharedPackages(access, question) for question in self._questions(args, kwargs)]
            for packages in asked:
                loaded = self._loaded_from(packages, args, kwargs)
                if loaded is not None:
                    return loaded
        made = ModelCall(self._model, args, kwargs, self._dynamic)
        return self._made(made, asked[0]) if asked else None

    def _loaded_from(
        self, packages: SharedPackages, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> LoadedPackage | None:
        prefetches = [p for p in self._prefetches if packages.digest in p.digests]
        for prefetch in prefetches:
            prefetch.wait()
        found = packages.find()
        if found is None:
            return None
        for prefetch in prefetches:
            program = found.prefetched or prefetch.program(found.entry.key)
            found = replace(found, prefetched=program)
            self._prefetches.remove(prefetch)
        stated = stated_settings(self._options)
        try:
            loaded = load_package(found, stated, self._model, (*self._first, *args), kwargs)
        except PackageRefusedError as error:
            counters.count_refusal("packages", error)
            packages.note_unanswered(error)
            return None
        packages.note_answered()
        return loaded

    def _made(self, made: ModelCall, packages: SharedPackages) -> LoadedPackage | None:
        """The package that this publisher makes, because the farm has none."""
        if not packages.may_publish:
            packages.note_missing()
            return None
        question = packages.question
        try:
            package = make_package(made, question, "kernelfarm", **self._options)
        except NotCoveredError as reason:
            counters.count(f"packages.not_covered.{reason}")
            return None
        except Exception as error:  # the model's own code, PyTorch or the farm may raise anything
            counters.count("packages.not_made")
            cause = f"{type(error).__name__}: {error}"
            warnings.warn(
                f"kernelfarm: no package is made, the model is compiled without one: {cause}",
                PackageWarning,
                stacklevel=2,
            )
            return None
        options = compile_options(self._options)
        packages.publish(package.content(question.parts["target"], options.pairs()))
        return LoadedPackage(package.function)


def _signature(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
    """What distinguishes calls that may have packages of their own; cheap to compute."""
    leaves, structure = _pytree.tree_flatten((args, kwargs))
    return (structure, torch.is_grad_enabled(), is_determinism_wanted(), *map(_kind, leaves))


def _kind(value: Any) -> object:
    if isinstance(value, torch.Tensor):
        return (value.dtype, value.device, value.shape, value.stride(), value.requires_grad)
    return (type(value), value if isinstance(value, bool | int | float | str) else None)
