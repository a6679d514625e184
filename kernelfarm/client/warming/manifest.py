"""The manifest of a warming job: models, input shapes with ranges, element types, targets, options.

    format: 1
    targets: ["cpu:x86-64-v4", "cuda:sm_90a"]
    models:
      - name: encoder
        entry: my_models:encoder         # a function that returns a module and its arguments
        tag: encoder@3                   # invalidates its programs by name
        sizes:
          batch: {min: 1, max: 64}       # one program for the whole range
          tokens: [128, 512]             # one program for each
        inputs: [[batch, tokens]]        # the shape of each argument
        dtypes: [f32, bf16]
      - name: ranker
        file: ranker.pt2                 # saved by torch.export.save

docs/warming.md describes every field.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    model_validator,
)

from kernelfarm.client.warming.yaml_lines import YamlDocument, parse_yaml
from kernelfarm.errors import CallerError, KernelfarmError
from kernelfarm.ir.product_choice import ProductChoice
from kernelfarm.signing.tags import model_tag
from kernelfarm.targets import target_facts
from kernelfarm.tuning import MAX_DEVICE_CHARS

MAX_MANIFEST_BYTES = 1 << 20
_MAX_MODELS = 1024
_MAX_TARGETS = 64
_MAX_SIZES = 64
_MAX_DEVICES = 64
_MAX_AXES = 16
_MAX_EXTENT = 2**31 - 1

Extent = Annotated[int, Field(ge=0, le=_MAX_EXTENT)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
SizeName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,31}$")]
Argument = bool | int | float | Annotated[str, Field(max_length=1024)] | None
FloatType = Literal["f64", "f32", "f16", "bf16"]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class SizeRange(_Strict):
    """A size that varies between calls: one program serves the whole range."""

    min: Annotated[int, Field(ge=1, le=_MAX_EXTENT)]
    max: Annotated[int, Field(ge=2, le=_MAX_EXTENT)]

    @model_validator(mode="after")
    def _is_ordered(self) -> SizeRange:
        if self.min >= self.max:
            raise ValueError(f"min {self.min} is not below max {self.max}")
        return self


def _mapping_or_list(value: Any) -> str:
    return "mapping" if isinstance(value, dict | BaseModel) else "list"


# A mistake is reported for the form that was meant, not for both.
_ByForm = Discriminator(_mapping_or_list)
SizeList = Annotated[list[Extent], Field(min_length=1, max_length=_MAX_SIZES)]
Size = Annotated[
    Union[Annotated[SizeRange, Tag("mapping")], Annotated[SizeList, Tag("list")]], _ByForm
]
Device = Annotated[str, Field(min_length=1, max_length=MAX_DEVICE_CHARS)]
Devices = Annotated[list[Device], Field(min_length=1, max_length=_MAX_DEVICES)]
Shape = Annotated[list[Extent | SizeName], Field(max_length=_MAX_AXES)]

Shapes = Annotated[
    Union[
        Annotated[dict[str, Shape | None], Field(max_length=256), Tag("mapping")],
        Annotated[list[Shape | None], Field(max_length=256), Tag("list")],
    ],
    _ByForm,
]


class CompileFlags(_Strict):
    """Options that change the code, as those of `torch.compile(backend="kernelfarm")`."""

    deterministic: bool = False
    fallback_random: bool = False
    products: Literal["auto", "library", "own", "tuned"] = "auto"

    @property
    def is_tuned(self) -> bool:
        """True if the fleet chooses who computes each product."""
        return self.products == "tuned"

    @property
    def product_choice(self) -> ProductChoice:
        """Who computes products for which the fleet has not chosen."""
        return ProductChoice.AUTO if self.is_tuned else ProductChoice(self.products)


class ModelSpec(_Strict):
    """One model: a Python entry or a `.pt2` file, and what to warm of it."""

    name: Name
    entry: Annotated[str, Field(pattern=r"^[\w.]+:\w+$", max_length=500)] | None = None
    file: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    arguments: Annotated[dict[str, Argument], Field(max_length=64)] = {}
    tag: Annotated[str, Field(max_length=200)] = ""
    sizes: Annotated[dict[SizeName, Size], Field(max_length=16)] = {}
    inputs: Shapes = []
    dtypes: Annotated[list[FloatType], Field(max_length=4)] = []
    targets: Annotated[list[str], Field(max_length=_MAX_TARGETS)] | None = None
    options: CompileFlags | None = None
    grad: Literal["no_grad", "inference_mode"] = "no_grad"
    train: bool = False

    @model_validator(mode="after")
    def _is_whole(self) -> ModelSpec:
        if (self.entry is None) == (self.file is None):
            raise ValueError("expected either `entry` (package.module:function) or `file` (.pt2)")
        if self.file is not None:
            unfit = [n for n in ("arguments", "sizes", "inputs", "dtypes") if getattr(self, n)]
            if unfit:
                raise ValueError(f"a .pt2 file has its own inputs: leave out {', '.join(unfit)}")
            if self.train:
                raise ValueError("a .pt2 file has no gradients: leave out train, or use `entry`")
        if self.train and "grad" in self.model_fields_set:
            raise ValueError("`train` runs with gradients: leave out grad")
        self._check_sizes()
        if len(set(self.dtypes)) < len(self.dtypes):
            raise ValueError("an element type is there twice")
        if self.tag:
            _checked(model_tag, self.tag)
        return self

    def _check_sizes(self) -> None:
        shapes = self.inputs.values() if isinstance(self.inputs, dict) else self.inputs
        used = {word for shape in shapes if shape for word in shape if isinstance(word, str)}
        if unknown := sorted(used - self.sizes.keys()):
            raise ValueError(f"inputs name the sizes {', '.join(unknown)}, which `sizes` lacks")
        if unused := sorted(self.sizes.keys() - used):
            raise ValueError(f"no input has the sizes {', '.join(unused)}")


class WarmingManifest(_Strict):
    """What a warming job warms."""

    format: Literal[1]
    targets: Annotated[list[str], Field(min_length=1, max_length=_MAX_TARGETS)]
    options: CompileFlags = CompileFlags()
    devices: Annotated[dict[str, Devices], Field(max_length=_MAX_TARGETS)] = {}
    models: Annotated[list[ModelSpec], Field(min_length=1, max_length=_MAX_MODELS)]

    @model_validator(mode="after")
    def _is_consistent(self) -> WarmingManifest:
        names = [model.name for model in self.models]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"several models have the name {', '.join(twice)}")
        self._check_devices()
        return self

    def _check_devices(self) -> None:
        warmed = {target for model in self.models for target in self.targets_of(model)}
        if unused := sorted(self.devices.keys() - warmed):
            raise ValueError(f"devices of {', '.join(unused)}, which no model is warmed for")
        for model in self.models:
            if self.options_of(model).is_tuned and self.devices.keys().isdisjoint(
                self.targets_of(model)
            ):
                raise ValueError(
                    f"products 'tuned' of {model.name} without a device of its targets: state"
                    " `devices`, by the names that `kernelfarm doctor` shows"
                )

    def targets_of(self, model: ModelSpec) -> tuple[str, ...]:
        """The targets of a model: its own, or those of the manifest."""
        return tuple(self.targets if model.targets is None else model.targets)

    def traced_target_of(self, model: ModelSpec) -> str | None:
        """The target for which a model's training graphs are traced; None for the job's device.

        Targets of one vendor have the same graphs, so it is the first of them.
        """
        targets = self.targets_of(model)
        return targets[0] if len({target_facts(target).vendor for target in targets}) == 1 else None

    def options_of(self, model: ModelSpec) -> CompileFlags:
        """The options of a model: its own, or those of the manifest."""
        return self.options if model.options is None else model.options


def read_manifest(path: Path) -> WarmingManifest:
    """The manifest in a file; paths of `.pt2` files are relative to its folder.

    Raises:
        CallerError: the file cannot be read or breaks a rule; the message names line and field of
            each mistake.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_MANIFEST_BYTES + 1)
        text = content.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CallerError(f"cannot read the manifest {path}: {error}") from error
    if len(content) > MAX_MANIFEST_BYTES:
        raise CallerError(f"{path} is larger than {MAX_MANIFEST_BYTES} bytes, the limit")
    return parse_manifest(text, str(path))


def parse_manifest(text: str, name: str) -> WarmingManifest:
    """The manifest in a text; messages name the file.

    Raises:
        CallerError: see `read_manifest`.
    """
    document = parse_yaml(text, name)
    try:
        manifest = WarmingManifest.model_validate(document.value)
    except ValidationError as error:
        faults = dict.fromkeys(_faults(error, document, name))
        raise CallerError("\n".join(faults)) from error
    for path, targets in _target_lists(manifest):
        for at, target in enumerate(targets):
            where = f"{name}:{document.line_of((*path, at))}: {'.'.join(map(str, path))}"
            if target in targets[:at]:
                raise CallerError(f"{where}: target {target!r} is there twice")
            try:
                target_facts(target)
            except KernelfarmError as error:
                raise CallerError(f"{where}: {error}") from error
    return manifest


def _target_lists(manifest: WarmingManifest) -> Iterator[tuple[tuple[str | int, ...], list[str]]]:
    yield ("targets",), manifest.targets
    for number, model in enumerate(manifest.models):
        if model.targets is not None:
            yield ("models", number, "targets"), model.targets


def _faults(error: ValidationError, document: YamlDocument, name: str) -> Iterator[str]:
    for fault in error.errors(include_url=False, include_context=False):
        path = _existing(fault["loc"], document)
        if fault["type"] == "missing":
            path.append(fault["loc"][-1])
        field = ".".join(map(str, path)) or "the manifest"
        message = fault["msg"].removeprefix("Value error, ")
        seen = (
            ""
            if fault["type"] in ("missing", "value_error")
            else f" (seen: {fault['input']!r:.60})"
        )
        yield f"{name}:{document.line_of(path)}: {field}: {message}{seen}"


def _existing(path: tuple[str | int, ...], document: YamlDocument) -> list[str | int]:
    """A path without the names that pydantic adds for the alternatives of a union."""
    found: list[str | int] = []
    value = document.value
    for word in path:
        try:
            value = value[word]
        except (KeyError, IndexError, TypeError):
            continue
        found.append(word)
    return found


def _checked(check: object, value: str) -> None:
    assert callable(check)
    try:
        check(value)
    except CallerError as error:
        raise ValueError(str(error)) from error
