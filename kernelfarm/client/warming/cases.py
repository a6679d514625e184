"""The cases of a model: one for each element type and each combination of listed sizes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kernelfarm.client.warming.manifest import ModelSpec, SizeRange, WarmingManifest
from kernelfarm.errors import CallerError

MAX_CASES = 10_000
"""Cases of a manifest; each is traced once, which takes seconds."""


@dataclass(frozen=True, slots=True)
class Case:
    """One capture of a model: its element type (empty: as built), and its sizes by name."""

    model: ModelSpec
    dtype: str
    sizes: Mapping[str, int | SizeRange]

    @property
    def title(self) -> str:
        """One line that names it."""
        words = [self.model.name, *([self.dtype] if self.dtype else [])]
        return " ".join([*words, *(f"{name}={_text(size)}" for name, size in self.sizes.items())])

    def size_texts(self) -> dict[str, str]:
        """The sizes as text; a range as `1..64`."""
        return {name: _text(size) for name, size in self.sizes.items()}


def cases_of(manifest: WarmingManifest) -> list[Case]:
    """All cases of a manifest, in its order.

    Raises:
        CallerError: there are too many.
    """
    found = list(itertools.islice(_cases(manifest), MAX_CASES + 1))
    if len(found) > MAX_CASES:
        raise CallerError(
            f"the manifest has more than {MAX_CASES} combinations of sizes and element types; state"
            " ranges (min, max) instead of lists, or make several manifests"
        )
    return found


def _cases(manifest: WarmingManifest) -> Iterator[Case]:
    for model in manifest.models:
        names = list(model.sizes)
        choices: list[list[int | SizeRange]] = [
            [size] if isinstance(size, SizeRange) else list(size) for size in model.sizes.values()
        ]
        dtypes: tuple[str, ...] = tuple(model.dtypes) or ("",)
        for dtype in dtypes:
            for chosen in itertools.product(*choices):
                yield Case(model, dtype, dict(zip(names, chosen, strict=True)))


def _text(size: int | SizeRange) -> str:
    return f"{size.min}..{size.max}" if isinstance(size, SizeRange) else str(size)
