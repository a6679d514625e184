"""Turns chosen convolutions by Winograd's algorithm F(2 x 2, 3 x 3) into prims.

    extern winograd(x, u, b)  ->  v = cat of 16 sums of 4 x 4 slices of the padded image
                                  m = sum(v over (16, t, -, c) * u over (16, -, k, c); c)
                                  sums of m, 2 x 2 pixels of each tile beside each other, + b

in f32, for t tiles of all images. The channels are the last axis of v and m, so kernels compute
vectors of them. What reads the result is fused with its sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernelfarm.ir.algebra.expr import ONE, Expr, as_expr
from kernelfarm.ir.graph_ir import Graph, Node
from kernelfarm.ir.winograd import NUMBERS, SPAN, TILE, padding_of, tiles_of
from kernelfarm.ir.work_budget import spend
from optimizer_svc.analysis.graph_facts import operands
from optimizer_svc.ir.contraction_choice import ContractionChoice
from optimizer_svc.ir.contraction_writer import ContractionWriter, with_contractions

_Values = Sequence[int]
_NODES = 192
"""About as many nodes are appended for a convolution."""


def compute_winograd(graph: Graph, winograd: ContractionChoice) -> Graph:
    """The graph with the chosen convolutions as prims."""
    return with_contractions(graph, winograd, _Writer)


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Numbers of images, tiles and pixels; `inner` are the channels of the image."""

    images: int
    inner: int
    channels: int
    height: int
    width: int
    padding: int

    @property
    def tiles(self) -> tuple[int, int]:
        """The tiles along both axes of an image."""
        return tiles_of(self.height), tiles_of(self.width)


class _Writer(ContractionWriter):
    """A computed convolution ends in a node with the old result."""

    def compute(self, node: Node) -> None:
        """Appends a convolution."""
        spend(_NODES)
        image, weight, *biases = operands(node)
        sizes = self._sizes(node, image)
        transformed = self._transform_image(node, image, sizes)
        products = self._multiply(node, transformed, weight)
        pixels = self._transform_back(node, products, sizes)
        if not biases:
            self.finish(node, "permute", pixels, dims=(0, 3, 1, 2))
            return
        pixels = self.add(node, "permute", pixels, dims=(0, 3, 1, 2))
        shape = self.types[pixels].shape
        spread = self.add(node, "broadcast_in_dim", biases[0], shape=shape, dims=(1,))
        self.finish(node, "add", pixels, spread)

    def _sizes(self, node: Node, image: int) -> _Sizes:
        images, inner, *given = (extent.constant for extent in self.types[image].shape)
        _, channels, height, width = (extent.constant for extent in node.types[0].shape)
        padding = padding_of(given, (height, width))
        assert padding is not None  # it was chosen
        return _Sizes(images, inner, channels, height, width, padding)

    def _transform_image(self, node: Node, image: int, sizes: _Sizes) -> int:
        """Appends the transformed image, which has the number that was chosen for it.

        Shapes: (n, c, h, w) -> (16, t, c)
        """
        whole = self.add(node, "permute", image, dims=(0, 2, 3, 1))
        given = [extent.constant for extent in self.types[whole].shape[1:3]]
        spans = [TILE * tiles + SPAN - TILE for tiles in sizes.tiles]
        behind = [span - n - sizes.padding for span, n in zip(spans, given, strict=True)]
        padded = self.add(
            node,
            "pad",
            whole,
            low=_extents(0, sizes.padding, sizes.padding, 0),
            high=_extents(0, *behind, 0),
            value=0.0,
        )
        tiles = [
            [self._slice_of_tiles(node, padded, (down, right), sizes) for right in range(SPAN)]
            for down in range(SPAN)
        ]
        rows = [self._differences(node, row) for row in tiles]
        columns = zip(
            *(self._differences(node, column) for column in zip(*rows, strict=True)), strict=True
        )
        shape = _extents(1, sizes.images, *sizes.tiles, sizes.inner)
        pieces = [
            self.add(node, "reshape", number, shape=shape) for row in columns for number in row
        ]
        made = self.choice.transformed[node.results[0]]
        self.add_as(made.stacked, node, "cat", *pieces, dim=0)
        count = sizes.images * sizes.tiles[0] * sizes.tiles[1]
        matrices = _extents(NUMBERS, count, sizes.inner)
        self.add_as(made.transformed, node, "reshape", made.stacked, shape=matrices)
        return made.transformed

    def _slice_of_tiles(self, node: Node, padded: int, at: tuple[int, int], sizes: _Sizes) -> int:
        """Appends one pixel of the 4 x 4 of all tiles.

        Shapes: (n, height, width, c) -> (n, tiles down, tiles right, c)
        """
        ends = [
            start + TILE * (tiles - 1) + 1 for start, tiles in zip(at, sizes.tiles, strict=True)
        ]
        return self.add(
            node,
            "slice",
            padded,
            starts=_extents(0, *at, 0),
            limits=_extents(sizes.images, *ends, sizes.inner),
            steps=_extents(1, TILE, TILE, 1),
        )

    def _differences(self, node: Node, pixels: _Values) -> list[int]:
        """Appends the four numbers of four pixels of a row, or of a column."""
        first, second, third, fourth = pixels
        return [
            self.add(node, "sub", first, third),
            self.add(node, "add", second, third),
            self.add(node, "sub", third, second),
            self.add(node, "sub", second, fourth),
        ]

    def _multiply(self, node: Node, transformed: int, weight: int) -> int:
        """Appends 16 products of matrices.

        The weight is a view of its panels, in which kernels find their order.
        Shapes: (16, t, c), (16, panels, c, width) -> (16, t, k)
        """
        numbers, tiles, inner = self.types[transformed].shape
        _, panels, _, width = self.types[weight].shape
        channels = node.types[0].shape[1]
        shape = (numbers, tiles, channels, inner)
        turned = self.add(node, "permute", weight, dims=(0, 1, 3, 2))
        turned = self.add(node, "reshape", turned, shape=(numbers, panels * width, inner))
        if panels * width is not channels:
            turned = self.add(
                node,
                "slice",
                turned,
                starts=_extents(0, 0, 0),
                limits=(numbers, channels, inner),
                steps=_extents(1, 1, 1),
            )
        left = self.add(node, "broadcast_in_dim", transformed, shape=shape, dims=(0, 1, 3))
        right = self.add(node, "broadcast_in_dim", turned, shape=shape, dims=(0, 2, 3))
        products = self.choice.transformed[node.results[0]].products
        self.add_as(products, node, "sum", self.add(node, "mul", left, right), dims=(3,))
        return products

    def _transform_back(self, node: Node, products: int, sizes: _Sizes) -> int:
        """Appends the pixels of the result.

        Shapes: (16, t, k) -> (n, h, w, k)
        """
        shape = _extents(sizes.images, *sizes.tiles, sizes.channels)
        whole = self.add(node, "reshape", products, shape=(as_expr(NUMBERS), *shape))
        numbers = [self._number_of_tiles(node, whole, at, shape) for at in range(NUMBERS)]
        rows = [self._sums(node, numbers[at : at + SPAN]) for at in range(0, NUMBERS, SPAN)]
        right = [self._sums(node, column) for column in zip(*rows, strict=True)]
        sides = [self._beside(node, pair, 3) for pair in zip(*right, strict=True)]
        found = self._beside(node, sides, 2)
        down, across = (TILE * tiles for tiles in sizes.tiles)
        found = self.add(
            node, "reshape", found, shape=_extents(sizes.images, down, across, sizes.channels)
        )
        if (down, across) == (sizes.height, sizes.width):
            return found
        limits = _extents(sizes.images, sizes.height, sizes.width, sizes.channels)
        return self.add(
            node,
            "slice",
            found,
            starts=_extents(0, 0, 0, 0),
            limits=limits,
            steps=_extents(1, 1, 1, 1),
        )

    def _number_of_tiles(self, node: Node, whole: int, number: int, shape: tuple[Expr, ...]) -> int:
        """Appends one of the 16 numbers of all tiles.

        Shapes: (16, n, tiles down, tiles right, k) -> (n, tiles down, tiles right, k)
        """
        found = self.add(
            node,
            "slice",
            whole,
            starts=_extents(number, 0, 0, 0, 0),
            limits=(as_expr(number + 1), *shape),
            steps=(ONE,) * 5,
        )
        return self.add(node, "reshape", found, shape=shape)

    def _sums(self, node: Node, numbers: _Values) -> tuple[int, int]:
        """Appends the two sums of four numbers of a row, or of a column."""
        first, second, third, fourth = numbers
        left = self.add(node, "add", self.add(node, "add", first, second), third)
        right = self.add(node, "sub", self.add(node, "sub", second, third), fourth)
        return left, right

    def _beside(self, node: Node, values: _Values, dim: int) -> int:
        """Appends values beside each other along a new axis."""
        shape = self.types[values[0]].shape
        longer = (*shape[:dim], ONE, *shape[dim:])
        return self.add(
            node, "cat", *(self.add(node, "reshape", v, shape=longer) for v in values), dim=dim
        )


def _extents(*numbers: int) -> tuple[Expr, ...]:
    return tuple(as_expr(number) for number in numbers)
