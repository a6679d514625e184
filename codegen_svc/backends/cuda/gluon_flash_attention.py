"""Flash attention for Hopper in Gluon, Triton's language of layouts: text, which nothing imports.

`flash_attention.py` gives the constants below their values and compiles the text. A program has
groups of four warps. One loads keys and values by tensor maps, block by block, into a ring in
shared memory. The others compute 64 queries each. Their instructions multiply matrices in shared
memory while the group goes on (Shah et al. 2024, "FlashAttention-3"): the softmax of one block is
computed while the values of the block before it are multiplied.

Keys and values may be in pages of a cache. Then a block comes in chunks of rows of one page each,
by maps whose first axis is the page, and lies in shared memory as one copy would store it. Chunks
behind the last key come from a page that the cache does not have: they are zeros.

Blocks are taken from the last to the first, so that those with hidden keys come first. A program
computes tiles of queries one after the other if there are more tiles than programs. Tiles of as
many heads as fit the second-level cache come together, longest first. Every second round of tiles
is reversed, so that programs with long tiles get short ones.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

HEADS = gl.constexpr(1)
SHARING = gl.constexpr(1)
# The width of a head, filled up to a power of two: maps read zeros there, and copy nothing back.
WIDTH_BLOCK = gl.constexpr(64)
SCALE = gl.constexpr(0.125)
IS_CAUSAL = gl.constexpr(False)
HAS_MASK = gl.constexpr(False)
# False if a mask has one row for all queries; true if the last block of keys may not be full.
HAS_MASK_ROWS = gl.constexpr(False)
HAS_TAIL = gl.constexpr(False)
HAS_SUMS = gl.constexpr(False)
# Groups of warps that compute, the keys of a block, and the blocks of the ring.
GROUPS = gl.constexpr(2)
BLOCK = gl.constexpr(128)
STAGES = gl.constexpr(2)
# The rows of a page, 0 if keys are in no pages; the rows and columns that come by one copy.
PAGE = gl.constexpr(0)
CHUNK = gl.constexpr(128)
COLUMNS = gl.constexpr(64)
# Registers of a thread that computes; True if groups multiply by turns; heads that come together.
REGISTERS = gl.constexpr(240)
TAKES_TURNS = gl.constexpr(False)
SPAN = gl.constexpr(1)

LN_2 = gl.constexpr(0.6931471805599453)
LOG2_E = gl.constexpr(1.4426950408889634)
ROWS = gl.constexpr(64)
LOADING_REGISTERS = gl.constexpr(24)


@gluon.jit
def next_stage(stage, phase):
    """The next block of the ring; barriers change their phase with each turn of it."""
    stage += 1
    phase = gl.where(stage == STAGES, phase ^ 1, phase)
    stage = gl.where(stage == STAGES, 0, stage)
    return stage, phase


@gluon.jit
def tile_count(sizes):
    """The tiles of queries of all heads; sizes are those of sequences, queries and keys."""
    return sizes[0] * HEADS * gl.cdiv(sizes[1], GROUPS * ROWS)


@gluon.jit
def tile_of(turn, sizes):
    """Number, sequence, head, first query and number of key blocks of a program's tile."""
    _, length, key_count = sizes
    tiles = gl.cdiv(length, GROUPS * ROWS)
    own = gl.program_id(0)
    own = gl.where(turn % 2 == 1, gl.num_programs(0) - 1 - own, own)
    at = turn * gl.num_programs(0) + own
    within = at % (tiles * SPAN)
    tile = tiles - 1 - within // SPAN
    head = at // (tiles * SPAN) * SPAN + within % SPAN
    first = tile * (GROUPS * ROWS)
    blocks = gl.cdiv(key_count, BLOCK)
    if IS_CAUSAL:
        blocks = gl.minimum(blocks, gl.cdiv(first + GROUPS * ROWS, BLOCK))
    return at, head // HEADS, head % HEADS, first, blocks


@gluon.jit
def page_of(table, row, key_count):
    """The page of a row, by its table (numbers, count of pages); behind the last key, the count."""
    numbers, count = table
    page = gl.load(numbers + row // PAGE, mask=row < key_count, other=0)
    page = gl.where(page < 0, page + count, page)
    page = gl.minimum(gl.maximum(page, 0), count - 1).to(gl.int32)
    return gl.where(row < key_count, page, count)


@gluon.jit
def copy_block(own_map, place, table, key_count, full, blocks, stage):
    """Copies a block of keys or values, whose `place` is sequence, head and first row."""
    batch, shared, first = place
    chunks: gl.constexpr = BLOCK // CHUNK
    sides: gl.constexpr = WIDTH_BLOCK // COLUMNS
    mbarrier.expect(full, own_map.nbytes_per_cta * (chunks * sides))
    # Not unrolled: the addresses of all chunks would take more registers than the warp has.
    for chunk in range(chunks):
        row = first + chunk * CHUNK
        page = batch
        if PAGE > 0:
            page = page_of(table, row, key_count)
            row %= PAGE
        for side in gl.static_range(sides):
            at = (stage * sides + side) * chunks + chunk
            tma.async_load(own_map, [page, shared, row, side * COLUMNS], full, blocks.index(at))


@gluon.jit
def load(copied, tables, table_steps, sizes, barriers):
    """The loading warp: queries of each group, then blocks of keys and values, for each tile."""
    query_map, key_map, value_map, queries, keys, values = copied
    key_table, value_table, key_pages, value_pages = tables
    key_at, key_step, value_at, value_step = table_steps
    query_full, query_free, key_full, key_free, value_full, value_free, _ = barriers
    stage = 0
    phase = 1
    query_phase = 1
    for turn in range(gl.cdiv(tile_count(sizes), gl.num_programs(0))):
        at, batch, head, first, blocks = tile_of(turn, sizes)
        if at < tile_count(sizes):
            for group in gl.static_range(GROUPS):
                mbarrier.wait(query_free.index(group), query_phase)
                mbarrier.expect(query_full.index(group), query_map.nbytes_per_cta)
                tma.async_load(
                    query_map,
                    [batch, head, first + group * ROWS, 0],
                    query_full.index(group),
                    queries.index(group),
                )
            query_phase ^= 1
            shared = head // SHARING
            of_keys = ()
            of_values = ()
            if PAGE > 0:
                of_keys = (key_table + key_at + batch * key_step, key_pages)
                of_values = (value_table + value_at + batch * value_step, value_pages)
            for block in range(blocks):
                row = (blocks - 1 - block) * BLOCK
                place = (batch, shared, row)
                mbarrier.wait(key_free.index(stage), phase)
                full = key_full.index(stage)
                copy_block(key_map, place, of_keys, sizes[2], full, keys, stage)
                mbarrier.wait(value_free.index(stage), phase)
                full = value_full.index(stage)
                copy_block(value_map, place, of_values, sizes[2], full, values, stage)
                stage, phase = next_stage(stage, phase)


@gluon.jit
def with_mask(scores, mask, steps, sizes, place, rows, columns):
    """Scores times the scale, and the mask's numbers, in powers of two."""
    at, batch_step, head_step, row_step = steps
    batch, head = place
    base = mask + at + batch.to(gl.int64) * batch_step + head.to(gl.int64) * head_step
    seen = columns < sizes[2]
    if HAS_MASK_ROWS:
        own = gl.minimum(rows, sizes[1] - 1).to(gl.int64)
        places = base + (own * row_step)[:, None] + columns[None, :]
        added = gl.load(places, mask=seen[None, :], other=0.0).to(gl.float32)
        scores = scores * (SCALE * LOG2_E) + added * LOG2_E
    else:
        added = gl.load(base + columns, mask=seen, other=0.0).to(gl.float32)
        scores = scores * (SCALE * LOG2_E) + (added * LOG2_E)[None, :]
    return scores


@gluon.jit
def without_later(scores, rows, columns):
    """Scores of a causal mask: -inf for keys behind a query's own number."""
    return gl.where(rows[:, None] >= columns[None, :], scores, float("-inf"))


@gluon.jit
def finite(top):
    """What weights are relative to; a query that saw no key yet has no largest score."""
    if IS_CAUSAL or HAS_MASK:
        top = gl.where(top == float("-inf"), 0.0, top)
    return top


@gluon.jit
def compute(which: gl.constexpr, given):
    """A computing group: 64 queries of each tile."""
    mask, steps, sums, out_map, sizes, memory, barriers = given
    queries, keys, values, results = memory
    query_full, query_free, key_full, key_free, value_full, value_free, turns = barriers
    score_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    sum_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH_BLOCK, 16])
    weight_layout: gl.constexpr = gl.DotOperandLayout(0, sum_layout, 2)
    row_layout: gl.constexpr = gl.SliceLayout(1, sum_layout)
    # Without a mask, scores are scaled within the exponent.
    factor: gl.constexpr = 1.0 if HAS_MASK else SCALE * LOG2_E
    # Blocks with keys behind a query's number, and one more if the last one is not full.
    partial: gl.constexpr = (GROUPS * ROWS + BLOCK - 1) // BLOCK + (1 if HAS_TAIL else 0)
    own = which * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, score_layout))
    own_columns = gl.arange(0, BLOCK, layout=gl.SliceLayout(0, score_layout))
    zeros = gl.zeros([ROWS, BLOCK], gl.float32, layout=score_layout)
    query = queries.index(which).reshape([ROWS, WIDTH_BLOCK])
    key_stage = 0
    key_phase = 0
    value_stage = 0
    value_phase = 0
    query_phase = 0
    turn_phase = 0
    for turn in range(gl.cdiv(tile_count(sizes), gl.num_programs(0))):
        at, batch, head, first, blocks = tile_of(turn, sizes)
        if at < tile_count(sizes):
            rows = first + own
            columns = (blocks - 1) * BLOCK + own_columns
            found = gl.zeros([ROWS, WIDTH_BLOCK], gl.float32, layout=sum_layout)
            mbarrier.wait(query_full.index(which), query_phase)
            mbarrier.wait(key_full.index(key_stage), key_phase)
            key = keys.index(key_stage).reshape([BLOCK, WIDTH_BLOCK]).permute((1, 0))
            scores = warpgroup_mma(query, key, zeros, use_acc=False, is_async=True)
            scores = warpgroup_mma_wait(0, deps=(scores,))
            mbarrier.arrive(key_free.index(key_stage))
            key_stage, key_phase = next_stage(key_stage, key_phase)
            if HAS_MASK:
                scores = with_mask(scores, mask, steps, sizes, (batch, head), rows, columns)
            if HAS_TAIL:
                scores = gl.where((columns < sizes[2])[None, :], scores, float("-inf"))
            if IS_CAUSAL:
                scores = without_later(scores, rows, columns)
            top = gl.max(scores, 1)
            weights = gl.exp2(scores * factor - (finite(top) * factor)[:, None])
            total = gl.sum(weights, 1)
            narrow = gl.convert_layout(weights.to(values.dtype), weight_layout)
            for block in range(1, blocks):
                mbarrier.wait(key_full.index(key_stage), key_phase)
                if TAKES_TURNS:
                    mbarrier.wait(turns.index(which), turn_phase)
                key = keys.index(key_stage).reshape([BLOCK, WIDTH_BLOCK]).permute((1, 0))
                scores = warpgroup_mma(query, key, zeros, use_acc=False, is_async=True)
                mbarrier.wait(value_full.index(value_stage), value_phase)
                value = values.index(value_stage).reshape([BLOCK, WIDTH_BLOCK])
                found = warpgroup_mma(narrow, value, found, is_async=True)
                if TAKES_TURNS:
                    mbarrier.arrive(turns.index((which + 1) % GROUPS))
                    turn_phase ^= 1
                scores = warpgroup_mma_wait(1, deps=(scores,))
                mbarrier.arrive(key_free.index(key_stage))
                key_stage, key_phase = next_stage(key_stage, key_phase)
                columns = (blocks - 1 - block) * BLOCK + own_columns
                if HAS_MASK:
                    scores = with_mask(scores, mask, steps, sizes, (batch, head), rows, columns)
                if IS_CAUSAL and partial > 1:
                    if block < partial:
                        scores = without_later(scores, rows, columns)
                higher = gl.maximum(top, gl.max(scores, 1))
                base = finite(higher) * factor
                weights = gl.exp2(scores * factor - base[:, None])
                kept = gl.exp2(top * factor - base)
                total = total * kept + gl.sum(weights, 1)
                top = higher
                found = warpgroup_mma_wait(0, deps=(found,))
                mbarrier.arrive(value_free.index(value_stage))
                value_stage, value_phase = next_stage(value_stage, value_phase)
                found = found * gl.convert_layout(kept, row_layout)[:, None]
                narrow = gl.convert_layout(weights.to(values.dtype), weight_layout)
            mbarrier.arrive(query_free.index(which))
            query_phase ^= 1
            mbarrier.wait(value_full.index(value_stage), value_phase)
            value = values.index(value_stage).reshape([BLOCK, WIDTH_BLOCK])
            found = warpgroup_mma(narrow, value, found, is_async=True)
            found = warpgroup_mma_wait(0, deps=(found,))
            mbarrier.arrive(value_free.index(value_stage))
            value_stage, value_phase = next_stage(value_stage, value_phase)
            if HAS_SUMS:
                place = (batch * HEADS + head).to(gl.int64) * sizes[1]
                logarithm = (top * factor + gl.log2(total)) * LN_2
                if HAS_MASK:  # gradients expect this of a query that sees no key
                    logarithm = gl.where(total == 0.0, float("inf"), logarithm)
                gl.store(sums + place + rows, logarithm, mask=rows < sizes[1])
            if HAS_MASK:
                total = gl.where(total == 0.0, 1.0, total)
            found = found * (1.0 / gl.convert_layout(total, row_layout))[:, None]
            # The copy of the last tile's results has read them when this returns.
            tma.store_wait(0)
            gl.barrier()
            results.index(which).reshape([ROWS, WIDTH_BLOCK]).store(found.to(values.dtype))
            fence_async_shared()
            gl.barrier()
            # Rows behind the last query are not copied.
            tma.async_store(out_map, [batch, head, first + which * ROWS, 0], results.index(which))
    tma.store_wait(0)


@gluon.jit
def flash_attention(
    query,
    key,
    value,
    key_table,
    value_table,
    mask,
    out,
    sums,
    sequences,
    length,
    key_count,
    key_pages,
    value_pages,
    query_at,
    query_batch,
    query_head,
    query_row,
    query_column,
    key_at,
    key_batch,
    key_head,
    key_row,
    key_column,
    value_at,
    value_batch,
    value_head,
    value_row,
    value_column,
    mask_at,
    mask_batch,
    mask_head,
    mask_row,
    mask_column,
    key_table_at,
    key_table_batch,
    value_table_at,
    value_table_batch,
    query_map,
    key_map,
    value_map,
    out_map,
):
    """The kernel; maps have axes (batch, heads, rows, width), and hold the operands' steps."""
    dtype: gl.constexpr = query_map.dtype
    queries = gl.allocate_shared_memory(dtype, [GROUPS, 1, 1, ROWS, WIDTH_BLOCK], query_map.layout)
    chunks: gl.constexpr = STAGES * (BLOCK // CHUNK) * (WIDTH_BLOCK // COLUMNS)
    cut: gl.constexpr = [chunks, 1, 1, CHUNK, COLUMNS]
    key_chunks = gl.allocate_shared_memory(dtype, cut, key_map.layout)
    value_chunks = gl.allocate_shared_memory(dtype, cut, value_map.layout)
    keys = key_chunks.reinterpret(shape=[STAGES, 1, 1, BLOCK, WIDTH_BLOCK])
    values = value_chunks.reinterpret(shape=[STAGES, 1, 1, BLOCK, WIDTH_BLOCK])
    tables = (key_table, value_table, key_pages, value_pages)
    table_steps = (key_table_at, key_table_batch, value_table_at, value_table_batch)
    results = gl.allocate_shared_memory(dtype, [GROUPS, 1, 1, ROWS, WIDTH_BLOCK], out_map.layout)
    memory = (queries, keys, values, results)
    copied = (query_map, key_map, value_map, queries, key_chunks, value_chunks)
    sizes = (sequences, length, key_count)
    steps = (mask_at, mask_batch, mask_head, mask_row)
    query_full = mbarrier.allocate_mbarrier(batch=GROUPS)
    query_free = mbarrier.allocate_mbarrier(batch=GROUPS)
    turns = mbarrier.allocate_mbarrier(batch=GROUPS)
    key_full = mbarrier.allocate_mbarrier(batch=STAGES)
    key_free = mbarrier.allocate_mbarrier(batch=STAGES)
    value_full = mbarrier.allocate_mbarrier(batch=STAGES)
    value_free = mbarrier.allocate_mbarrier(batch=STAGES)
    for group in gl.static_range(GROUPS):
        mbarrier.init(query_full.index(group), count=1)
        mbarrier.init(query_free.index(group), count=1)
        mbarrier.init(turns.index(group), count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(key_full.index(stage), count=1)
        mbarrier.init(value_full.index(stage), count=1)
        mbarrier.init(key_free.index(stage), count=GROUPS)
        mbarrier.init(value_free.index(stage), count=GROUPS)
    fence_async_shared()
    if TAKES_TURNS:
        mbarrier.arrive(turns.index(0))
    barriers = (query_full, query_free, key_full, key_free, value_full, value_free, turns)
    given = (mask, steps, sums, out_map, sizes, memory, barriers)
    loading = (copied, tables, table_steps, sizes, barriers)
    if GROUPS == 2:
        gl.warp_specialize(
            [(compute, (0, given)), (compute, (1, given)), (load, loading)],
            [4, 1],
            [REGISTERS, LOADING_REGISTERS],
        )
    else:
        gl.warp_specialize(
            [(compute, (0, given)), (compute, (1, given)), (compute, (2, given)), (load, loading)],
            [4, 4, 1],
            [REGISTERS, REGISTERS, LOADING_REGISTERS],
        )
