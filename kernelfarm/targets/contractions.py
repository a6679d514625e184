"""Facts about products, attention and convolutions: by whom a chip computes them faster."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProductFacts:
    """What the framework's matrix products need on a chip.

    If a row of an operand or result of 16-bit elements has not a multiple of `row_bytes`, the
    library takes kernels that are slower: by the time in which memory moves `bytes_per_operation`
    for each multiplication and addition of two elements.
    """

    row_bytes: int
    bytes_per_operation: float


@dataclass(frozen=True, slots=True)
class ProductTimes:
    """How long products of one width of elements take, by the framework's library and by a kernel.

    A product is x (m, k) by a weight of n x k elements. Both tables have times for some m as
    multiples of the library's time for m = 1. A product with a weight of less than
    `min_weight_bytes` is the library's: caches and launches decide its time. So is one of several
    rows whose number of terms is no multiple of `row_terms`: they fill no vectors.
    """

    min_weight_bytes: int
    library: tuple[tuple[str, float], ...] = ()
    kernel: tuple[tuple[str, float], ...] = ()
    row_terms: int = 1


@dataclass(frozen=True, slots=True)
class FewRowFacts:
    """Times of products with few rows: `wide` of f32, `narrow` of elements of 16 bits.

    `paired` are those of bf16 on processors that multiply pairs of them, in place of `narrow`.
    `wide_columns` and `narrow_columns` are those by weights (k, n), whose columns are contiguous.
    `integers` are those by weights that a model computes from integers of 8 bits, `float8` from
    floats of 8 bits, `shared_integers` and `shared_integer_columns` from smaller integers that
    share stored ones; the library's time includes a kernel that stores the weight.
    `grouped_nibbles` are those by words of integers of four bits that have a scale for 128 terms,
    which a template kernel computes. None: the library computes all of them.
    """

    wide: ProductTimes | None = None
    wide_columns: ProductTimes | None = None
    narrow: ProductTimes | None = None
    narrow_columns: ProductTimes | None = None
    paired: ProductTimes | None = None
    integers: ProductTimes | None = None
    float8: ProductTimes | None = None
    shared_integers: ProductTimes | None = None
    shared_integer_columns: ProductTimes | None = None
    grouped_nibbles: ProductTimes | None = None


@dataclass(frozen=True, slots=True)
class ManyRowFacts:
    """Products of more rows than `few_rows` has, on chips with instructions for matrices.

    A kernel computes one of elements of `types` if that is expected to save time, because it
    computes the points that follow it. The library computes `multiply_adds_per_byte` in the time in
    which memory moves a byte; a kernel takes `kernel` times as long. Rows of both factors are
    multiples of `row_bytes`, and have at least `least_terms` elements; results have at least
    `least_columns` columns. Fewer results than `filling_results` do not fill the chip, whose sums
    kernels do not divide: then they have at most `most_terms_of_few` terms.
    """

    types: tuple[str, ...]
    multiply_adds_per_byte: int
    kernel: float
    row_bytes: int
    least_terms: int
    least_columns: int
    filling_results: int
    most_terms_of_few: int


@dataclass(frozen=True, slots=True)
class TileTimes:
    """How long a processor's library takes for products of one type that kernels compute in tiles.

    A product is x (m, k) by a weight of n x k elements, (n, k) row-major. `library` has the
    library's time for some m, and all larger m up to the next one, as a multiple of a kernel's;
    `library_columns` has it for weights (k, n). A product with fewer rows than a table has, or with
    a weight of less than `min_weight_bytes`, is the library's. So is one of one row whose terms are
    no multiple of `row_terms`, and one by a weight (k, n) whose columns are no multiple of
    `whole_columns`. One whose number of rows varies is judged by the m with the least time.
    """

    min_weight_bytes: int
    row_terms: int = 1
    whole_columns: int = 1
    library: tuple[tuple[str, float], ...] = ()
    library_columns: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class TileFacts:
    """Times of products in tiles by the type of their elements; None: the library computes them."""

    f32: TileTimes | None = None
    bf16: TileTimes | None = None
    f16: TileTimes | None = None
    i8: TileTimes | None = None


@dataclass(frozen=True, slots=True)
class FrozenProductFacts:
    """Products by frozen weights that kernels compute faster than the library with packed weights.

    `in_rows` are the types of elements of those of few rows, with the most rows of each. If there
    is more than one row, its terms are a multiple of `row_terms`, and weights have at least
    `row_weight_bytes`. Clients leave their weights as they are, but for a weight (k, n), which they
    turn into (n, k) in memory. `in_tiles` are the types of those of at least `least_rows` rows and
    `least_columns` columns, by weights of at least `least_weight_bytes`, which clients store in
    panels. Those of `varying` types do so, too, if their number of rows varies.
    """

    in_rows: tuple[tuple[str, int], ...] = ()
    row_terms: int = 1
    row_weight_bytes: int = 1
    in_tiles: tuple[str, ...] = ()
    varying: tuple[str, ...] = ()
    least_rows: int = 1
    least_columns: int = 1
    least_weight_bytes: int = 1


@dataclass(frozen=True, slots=True)
class AttentionFacts:
    """Which attention kernels compute faster than the framework, by the types of its elements.

    `one_query` are those of attention of one query for each head. Of `several_queries`, there are
    at least `least_queries`. Kernels are launched for blocks of scores that take `block_bytes` in
    memory, or for larger ones where that would be too many, of at most `most_score_bytes`. Shares
    are rounded to the type of the values if it is one of `rounded_shares`, which the processor
    multiplies faster. `gradients` are the types of gradients, which are computed in such
    blocks, too. With varying sizes there are no blocks, and all scores take at most
    `most_score_bytes`; with `whole_causal`, kernels are faster also if they then compute the scores
    that a causal mask hides.
    """

    one_query: tuple[str, ...]
    several_queries: tuple[str, ...]
    least_queries: int
    most_score_bytes: int
    rounded_shares: tuple[str, ...] = ()
    gradients: tuple[str, ...] = ()
    block_bytes: int = 1 << 23
    whole_causal: bool = False


@dataclass(frozen=True, slots=True)
class DepthwiseTemplateFacts:
    """Depthwise convolutions that a template kernel computes faster than the framework.

    `types` are the types of elements; windows have at most `most_taps` pixels, and images at least
    `least_channels`. Windows of f32 have at least `least_wide_taps` pixels, but for gradients.
    Tiles are small if larger ones make fewer programs than `filling_programs`. About
    `weight_programs` programs divide the sums of a weight's gradient.
    """

    types: tuple[str, ...]
    most_taps: int
    least_wide_taps: int
    least_channels: int
    filling_programs: int
    weight_programs: int


@dataclass(frozen=True, slots=True)
class SplitAttentionFacts:
    """Attention of few queries for each head that kernels compute faster by parts of its keys.

    `types` are the types of its elements; heads have at most `most_width` of them, and at most
    `most_sharing` queries of all heads share a head of keys. All sequences together have at most
    `most_groups` heads of keys: more of them fill the chip anyway. Keys in pages have no such
    limit. As many parts are made as give about `programs` programs, of at least `least_keys` keys
    each. A program reads `block_keys` keys at a time, by `num_warps` warps, and loads of up to
    `num_stages` blocks at a time.
    """

    types: tuple[str, ...]
    most_width: int
    most_sharing: int
    most_groups: int
    programs: int
    least_keys: int
    block_keys: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class FlashAttentionFacts:
    """Attention of several queries for each head that a template kernel computes faster.

    `types` are the types of its elements; heads have `least_width` to `most_width` of them. With
    fewer than `least_programs`, programs for gradients take one head of queries each, and those for
    the gradient of a mask sum parts of it. The framework computes gradients, also of a mask, with
    fewer than `least_masked` queries or keys. If the chip has code of its own for the template that
    cannot read some pages of a cache where they are, up to `most_rows_in_place` queries that share
    a head of keys read them by the template's source.
    """

    types: tuple[str, ...]
    least_width: int
    most_width: int
    least_programs: int
    most_rows_in_place: int
    least_masked: int


@dataclass(frozen=True, slots=True)
class BatchedProductFacts:
    """Which batched products of matrices kernels compute faster than the framework's library.

    `types` are the types of their elements. Results have at least `least_extent` rows and columns,
    or numbers of them that vary.
    """

    types: tuple[str, ...]
    least_extent: int


@dataclass(frozen=True, slots=True)
class WinogradFacts:
    """Which convolutions kernels compute faster by Winograd's algorithm in frozen models.

    They have windows of 3 x 3 pixels, elements of `types`, and at least `least_channels` channels
    before and after them; if their results have `many_tiles` of 2 x 2 pixels or more, at least
    `least_channels_of_many`. The transformed tiles of an image and of its result take at most
    `most_bytes` together.
    """

    types: tuple[str, ...]
    least_channels: int
    many_tiles: int
    least_channels_of_many: int
    most_bytes: int


@dataclass(frozen=True, slots=True)
class ConvolutionFacts:
    """Which convolutions kernels compute faster than the framework's library.

    `one_pixel` are the types of elements of those with a window of one pixel, of at least
    `least_channels` channels before and after them. From `packed_multiplies` multiply-adds on, the
    library is as fast with a packed weight, so frozen models pack it. `single` are the types of
    those of one image that is one pixel itself: products of one row, which memory limits. Those of
    `widened` types, and their gradients, take the library less time in f32, conversions included.
    On a GPU, all images have at least `least_pixels` pixels together, and something is computed
    behind the convolution. A GPU's kernels also compute convolutions by windows of `windows` types,
    of images with up to four channels, or a multiple of `window_channels`; of several groups if
    each has a multiple of `group_channels` (0: of none), and at least `least_group_channels`,
    before and after the convolution.
    """

    one_pixel: tuple[str, ...]
    single: tuple[str, ...]
    least_channels: int
    packed_multiplies: int = 1
    widened: tuple[str, ...] = ()
    least_pixels: int = 1
    windows: tuple[str, ...] = ()
    window_channels: int = 1
    group_channels: int = 0
    least_group_channels: int = 0


@dataclass(frozen=True, slots=True)
class DepthwiseFacts:
    """Which depthwise convolutions kernels of a processor compute faster than its library.

    `types` are the types of elements of their images, which have at least `least_channels`
    channels. If images and results of f32 take more than `most_few_tap_bytes`, memory decides the
    time of windows of fewer than `few_taps` pixels, which the library reads faster.
    """

    types: tuple[str, ...]
    least_channels: int
    few_taps: int
    most_few_tap_bytes: int
