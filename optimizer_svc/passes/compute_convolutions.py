"""Turns chosen convolutions into sums over the channels, which become kernels.

    extern convolution(x, w, b)  ->  sum(x over (n, -, c, h, w) * w over (-, k, c, -, -); c) + b

in f32. What reads the result is fused with it. On GPUs, it is a product of the matrix of pixels,
which instructions for matrices take:

    extern convolution(x, w, b)  ->  sum(x over (n h w, -, c) * w over (-, k, c); c) + b

Others may stay extern, but in f32:

    extern convolution(x, w)  ->  convert(extern convolution(convert(x), convert(w)))
"""

from __future__ import annotations

from dataclasses import replace

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ONE, ZERO, as_expr, product_of
from kernelfarm.ir.graph_ir import Graph, Node, Ref
from kernelfarm.ir.work_budget import spend
from optimizer_svc.analysis.graph_facts import graph_facts, operands
from optimizer_svc.analysis.moved_windows import MovedWindow, few_channels, moved_window
from optimizer_svc.analysis.verdicts import Refused
from optimizer_svc.ir.contraction_choice import ContractionChoice
from optimizer_svc.ir.contraction_writer import ContractionWriter, with_contractions
from optimizer_svc.ir.prims_writer import PrimsWriter


def compute_convolutions(graph: Graph, convolutions: ContractionChoice) -> Graph:
    """The graph with the chosen convolutions as prims, and others in f32."""
    computed = with_contractions(graph, convolutions, _Writer)
    return _with_wide_externs(computed, convolutions)


def _with_wide_externs(graph: Graph, convolutions: ContractionChoice) -> Graph:
    if not convolutions.widened:
        return graph
    writer = PrimsWriter(graph_facts(graph))
    for node in graph.nodes:
        if convolutions.widened.isdisjoint(node.results):
            writer.nodes.append(node)
        else:
            _widen(writer, node)
    return replace(graph, nodes=tuple(writer.nodes))


def _widen(writer: PrimsWriter, node: Node) -> None:
    """Appends an extern node in f32, between conversions."""
    spend(16)
    args = tuple(Ref(writer.add(node, "convert", v, dtype=DType.F32)) for v in operands(node))
    types = tuple(replace(tensor, dtype=DType.F32) for tensor in node.types)
    results = tuple(writer.fresh(tensor) for tensor in types)
    writer.nodes.append(replace(node, args=args, results=results, types=types))
    for found, result, tensor in zip(results, node.results, node.types, strict=True):
        own = replace(node, results=(result,), types=(tensor,))
        writer.finish(own, "convert", found, dtype=tensor.dtype)


_LAST = (0, 2, 3, 1)
"""The axes of an image, or of a weight, with the channels last."""


_IMAGE_AXES = 3
"""Images, down and across."""


class _Writer(ContractionWriter):
    """A computed convolution ends in a node with the old result."""

    def compute(self, node: Node) -> None:
        """Appends a convolution with a window of one pixel.

        Shapes: n: images, k: channels of the result, c: channels, h: height, w: width
        """
        spend(16)
        if node.results[0] in self.choice.weights:
            self._move_window(node)
            return
        if node.results[0] in self.choice.rows:
            self._multiply(node, self.choice.rows[node.results[0]])
            return
        image, weight, *biases = operands(node)
        images, channels, height, width = self.types[image].shape
        results = self.types[weight].shape[0]
        shape = (images, results, channels, height, width)
        wide = self.wide(node, image)
        left = self.add(node, "broadcast_in_dim", wide, shape=shape, dims=(0, 2, 3, 4))
        wide = self.wide(node, weight)
        matrix = self.add(node, "reshape", wide, shape=(results, channels))
        right = self.add(node, "broadcast_in_dim", matrix, shape=shape, dims=(1, 2))
        terms = self.add(node, "mul", left, right)
        is_narrow = node.types[0].dtype is not DType.F32
        if not biases and not is_narrow:
            self.finish(node, "sum", terms, dims=(2,))
            return
        found = self.add(node, "sum", terms, dims=(2,))
        for bias in biases:
            wide = self.wide(node, bias)
            extents = self.types[found].shape
            spread = self.add(node, "broadcast_in_dim", wide, shape=extents, dims=(1,))
            if not is_narrow:
                self.finish(node, "add", found, spread)
                return
            found = self.add(node, "add", found, spread)
        self.finish(node, "convert", found, dtype=node.types[0].dtype)

    def _move_window(self, node: Node) -> None:
        """Appends a convolution as a product of the pixels of its windows by its weight.

        Shapes: n: images, h, w: pixels of the result, k: its channels, r, s: pixels of a window, c:
        channels; g: groups, of k and c each, if there are several; terms: (n, h, w, g, k, r, s, c)
        """
        weight, *biases = operands(node)[1:]
        window = moved_window(node, self.types[weight])
        assert not isinstance(window, Refused)  # it was chosen
        split = self.choice.split_taps.get(node.results[0], 0)
        left, right = self._factors(node, window, split)
        # Axes of the left factor up to the groups, then all of the right one but slices and groups.
        row = split + _IMAGE_AXES + (window.groups > 1)
        inner = split + (window.groups > 1)
        shape = (*self.types[left].shape[:row], *self.types[right].shape[inner:])
        axes = (
            (*range(row), *range(row + 1, len(shape))),
            (*range(split), *range(split + _IMAGE_AXES, len(shape))),
        )
        terms = (
            self.add(node, "broadcast_in_dim", self.wide(node, value), shape=shape, dims=dims)
            for value, dims in zip((left, right), axes, strict=True)
        )
        summed = tuple(range(row + 1, len(shape)))
        found = self.add(node, "sum", self.add(node, "mul", *terms), dims=summed)
        found = self._added(node, found, split)
        if window.groups > 1:
            images, results, *pixels = node.types[0].shape
            found = self.add(node, "reshape", found, shape=(images, *pixels, results))
        for bias in biases:
            extents = self.types[found].shape
            spread = self.add(
                node, "broadcast_in_dim", self.wide(node, bias), shape=extents, dims=(3,)
            )
            found = self.add(node, "add", found, spread)
        found = self.add(node, "convert", found, dtype=node.types[0].dtype)
        self.finish(node, "permute", found, dims=(0, 3, 1, 2))

    def _factors(self, node: Node, window: MovedWindow, split: int) -> tuple[int, int]:
        """Appends the pixels of all windows, and the weight; slices of the sum come first.

        Shapes: (slices, n, h, w, g, r, s, c) and (slices, g, k, r, s, c); g for several groups
        """
        around, weight = self._around(node, window), self.choice.weights[node.results[0]]
        moved = self.add(
            node,
            "window",
            around,
            dims=(1, 2),
            sizes=self.types[weight].shape[1:3],
            strides=tuple(as_expr(stride) for stride in window.strides),
            dilations=tuple(as_expr(dilation) for dilation in window.dilations),
        )
        if window.groups > 1:
            moved = self._divided(node, moved, _IMAGE_AXES, window.groups)
            weight = self._divided(node, weight, 0, window.groups)
        row = int(window.groups > 1)
        last = row + _IMAGE_AXES
        taps = (last + 1, last + 2)
        axes = (*taps[:split], *range(last), *taps[split:], last)
        left = self.add(node, "permute", moved, dims=axes)
        taps = (row + 1, row + 2)
        axes = (*taps[:split], *range(row + 1), *taps[split:], row + 3)
        return left, self.add(node, "permute", weight, dims=axes)

    def _divided(self, node: Node, value: int, axis: int, groups: int) -> int:
        """Appends a view with an axis that is divided into groups and their members."""
        shape = self.types[value].shape
        members = as_expr(shape[axis].constant // groups)
        shape = (*shape[:axis], as_expr(groups), members, *shape[axis + 1 :])
        return self.add(node, "reshape", value, shape=shape)

    def _added(self, node: Node, sums: int, split: int) -> int:
        """Appends the additions of the sums along the first axes of a value; neighbours first."""
        if not split:
            return sums
        shape = self.types[sums].shape[split:]
        count = product_of(self.types[sums].shape[:split])
        flat = self.add(node, "reshape", sums, shape=(count, *shape))
        starts, steps = (ZERO,) * len(shape), (ONE,) * (1 + len(shape))
        spend(8 * count.constant)
        found = []
        for number in range(count.constant):
            first, last = as_expr(number), as_expr(number + 1)
            part = self.add(
                node,
                "slice",
                flat,
                starts=(first, *starts),
                limits=(last, *shape),
                steps=steps,
            )
            found.append(self.add(node, "reshape", part, shape=shape))
        while len(found) > 1:
            pairs = [found[at : at + 2] for at in range(0, len(found), 2)]
            found = [p[0] if len(p) == 1 else self.add(node, "add", *p) for p in pairs]
        return found[0]

    def _around(self, node: Node, window: MovedWindow) -> int:
        """Appends image and weight as memory holds them; the image with its margin for windows.

        Shapes: (n, h, w, c); the weight (k, r, s, c)
        """
        image, weight = operands(node)[:2]
        rows, ordered = (by[node.results[0]] for by in (self.choice.rows, self.choice.weights))
        few = few_channels(window, self.types[image], node.types[0])
        if few is None:
            self.add_as(rows, node, "permute", image, dims=_LAST)
            self.add_as(ordered, node, "permute", weight, dims=_LAST)
            margin = tuple(as_expr(extent) for extent in (0, *window.padding, 0))
            if not any(window.padding):
                return rows
            return self.add(node, "pad", rows, low=margin, high=margin, value=0.0)
        self._pad_as(ordered, node, weight, (0, 0), (window.sides[0], few.across, few.channels))
        self._pad_as(rows, node, image, window.padding, (few.height, few.width, few.channels))
        down, across = (
            (extent.constant - 1) * stride + span
            for extent, stride, span in zip(
                node.types[0].shape[2:], window.strides, (window.spans[0], few.across), strict=True
            )
        )
        limits = (self.types[rows].shape[0], as_expr(down), as_expr(across), as_expr(few.channels))
        if limits == self.types[rows].shape:
            return rows
        return self.add(
            node, "slice", rows, starts=(ZERO,) * len(limits), limits=limits, steps=(ONE,) * 4
        )

    def _pad_as(
        self, number: int, node: Node, image: int, low: tuple[int, int], sides: tuple[int, int, int]
    ) -> None:
        """Appends an image with channels last and zeros around it, of (down, across, channels)."""
        turned = self.add(node, "permute", image, dims=_LAST)
        given = [extent.constant for extent in self.types[turned].shape[1:]]
        before = (*low, 0)
        after = (
            side - begin - have for side, begin, have in zip(sides, before, given, strict=True)
        )
        self.add_as(
            number,
            node,
            "pad",
            turned,
            low=(ZERO, *map(as_expr, before)),
            high=(ZERO, *map(as_expr, after)),
            value=0.0,
        )

    def _multiply(self, node: Node, rows: int) -> None:
        """Appends a convolution as a product by the value `rows`: pixels, with their channels.

        Shapes: p: pixels of all images, k: channels of the result, c: channels
        """
        image, weight, *biases = operands(node)
        images, channels, *sides = self.types[image].shape
        results = self.types[weight].shape[0]
        pixels = product_of([images, *sides])
        turned = self.add(node, "permute", image, dims=(0, 2, 3, 1))
        self.add_as(rows, node, "reshape", turned, shape=(pixels, channels))
        matrix = self.add(node, "reshape", weight, shape=(results, channels))
        shape = (pixels, results, channels)
        terms = (
            self.add(node, "broadcast_in_dim", self.wide(node, value), shape=shape, dims=dims)
            for value, dims in ((rows, (0, 2)), (matrix, (1, 2)))
        )
        found = self.add(node, "sum", self.add(node, "mul", *terms), dims=(2,))
        for bias in biases:
            extents = self.types[found].shape
            spread = self.add(
                node, "broadcast_in_dim", self.wide(node, bias), shape=extents, dims=(1,)
            )
            found = self.add(node, "add", found, spread)
        found = self.add(node, "convert", found, dtype=node.types[0].dtype)
        found = self.add(node, "reshape", found, shape=(images, *sides, results))
        self.finish(node, "permute", found, dims=(0, 3, 1, 2))
