"""Gradients of flash attention for Hopper in Gluon: text, which nothing imports.

`flash_gradients.py` gives the constants below their values and compiles the text. A program takes
128 keys and values of a head, and all queries that see them, 64 at a time. One warp loads queries
and gradients of results into a ring in shared memory. Two groups of four warps take 64 keys each,
and keep the gradients of their keys and values in registers.

Both groups multiply scores and gradients of weights turned, keys by queries: the weights, rounded,
are then the left factor of the gradients of values as they lie in registers. Gradients of scores
also go to shared memory, because those of queries need all keys of the program. Each group computes
half of their width, one block late, and a copy that adds to memory brings them there (Shah et al.
2024, "FlashAttention-3").
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
# The heads of queries of a program: all that share a head of keys, or one.
OWN_HEADS = gl.constexpr(1)
WIDTH = gl.constexpr(64)
# The width of a head, filled up to a power of two: maps read zeros there, and add nothing to it.
WIDTH_BLOCK = gl.constexpr(64)
SCALE = gl.constexpr(0.125)
IS_CAUSAL = gl.constexpr(False)
HAS_MASK = gl.constexpr(False)
# False if a mask has one row for all queries; true if the last keys of a program may not exist.
HAS_MASK_ROWS = gl.constexpr(False)
HAS_TAIL = gl.constexpr(False)

LOG2_E = gl.constexpr(1.4426950408889634)
GROUPS = gl.constexpr(2)
KEYS = gl.constexpr(64)
QUERIES = gl.constexpr(64)
HALF = gl.constexpr(WIDTH_BLOCK // 2)
# Barriers of `changes` count on two stages.
STAGES = gl.constexpr(2)
REGISTERS = gl.constexpr(240)
LOADING_REGISTERS = gl.constexpr(24)


@gluon.jit
def next_stage(stage, phase):
    """The next queries of the ring; barriers change their phase with each turn of it."""
    stage += 1
    phase = gl.where(stage == STAGES, phase ^ 1, phase)
    stage = gl.where(stage == STAGES, 0, stage)
    return stage, phase


@gluon.jit
def tile_of(sizes):
    """Sequence, first head of queries, first key, and the blocks of queries from first to last.

    Causal tiles of the first keys take the longest; they come first.
    """
    tiles = gl.cdiv(sizes[2], GROUPS * KEYS)
    tile = gl.program_id(0) % tiles
    units: gl.constexpr = HEADS // OWN_HEADS
    start = tile * (GROUPS * KEYS)
    first = 0
    if IS_CAUSAL:
        first = tile * (GROUPS * KEYS // QUERIES)
    head = gl.program_id(0) // tiles % units * OWN_HEADS
    return gl.program_id(0) // (tiles * units), head, start, first, gl.cdiv(sizes[1], QUERIES)


@gluon.jit
def load(query_map, key_map, value_map, grad_map, sizes, memory, barriers):
    """The loading warp: keys and values, then queries and gradients of results, block by block."""
    queries, grads, keys, values, _, _, _, _ = memory
    key_full, query_full, query_free, grad_full, grad_free, _, _ = barriers
    batch, first_head, start, first, last = tile_of(sizes)
    group = first_head // SHARING
    mbarrier.expect(key_full, key_map.nbytes_per_cta + value_map.nbytes_per_cta)
    tma.async_load(key_map, [batch, group, start, 0], key_full, keys)
    tma.async_load(value_map, [batch, group, start, 0], key_full, values)
    stage = 0
    phase = 1
    for own in range(OWN_HEADS):
        head = first_head + own
        for block in range(first, last):
            row = block * QUERIES
            mbarrier.wait(query_free.index(stage), phase)
            mbarrier.expect(query_full.index(stage), query_map.nbytes_per_cta)
            tma.async_load(
                query_map, [batch, head, row, 0], query_full.index(stage), queries.index(stage)
            )
            mbarrier.wait(grad_free.index(stage), phase)
            mbarrier.expect(grad_full.index(stage), grad_map.nbytes_per_cta)
            tma.async_load(
                grad_map, [batch, head, row, 0], grad_full.index(stage), grads.index(stage)
            )
            stage, phase = next_stage(stage, phase)


@gluon.jit
def read_statistics(own_statistics, filled, own, rows):
    """Log-sum-exps in powers of two, and means, of queries of one of the program's heads."""
    place = own_statistics + own * (2 * filled) + rows
    return gl.load(place), gl.load(place + filled)


@gluon.jit
def hidden(mask, steps, sizes, batch, head, keys):
    """What is added to the scores of each key, in powers of two."""
    at, batch_step, head_step, _ = steps
    seen = keys < sizes[2]
    if HAS_MASK and not HAS_MASK_ROWS:
        base = mask + at + batch.to(gl.int64) * batch_step + head.to(gl.int64) * head_step
        added = gl.load(base + keys, mask=seen, other=float("-inf")).to(gl.float32) * LOG2_E
    else:
        added = gl.where(seen, 0.0, float("-inf"))
    return added


@gluon.jit
def with_mask_rows(scores, mask, steps, sizes, batch, head, rows, keys):
    """Scores in powers of two with the numbers of a mask (queries, keys), turned."""
    at, batch_step, head_step, row_step = steps
    base = mask + at + batch.to(gl.int64) * batch_step + head.to(gl.int64) * head_step
    places = base + (rows.to(gl.int64) * row_step)[None, :] + keys[:, None]
    seen = (rows < sizes[1])[None, :] & (keys < sizes[2])[:, None]
    return scores + gl.load(places, mask=seen, other=0.0).to(gl.float32) * LOG2_E


@gluon.jit
def add_result(out_map, result, which: gl.constexpr, span, own, block, behind: gl.constexpr):
    """Adds the gradients of the queries of some blocks before one; zeros before the first.

    Rows behind the last query get nothing.
    """
    batch, head, first, last = span
    count = gl.maximum(last - first, 1)
    at = gl.maximum(own * count + block - first - behind, 0)
    if OWN_HEADS > 1:
        head += at // count
        at %= count
    row = (first + at) * QUERIES
    tma.async_atomic_add(out_map, [batch, head, row, which * HALF], result)


@gluon.jit
def compute(which: gl.constexpr, buffers, mask_steps, out_map, sizes, memory, barriers):
    """A computing group: 64 keys of the program."""
    mask, statistics, grad_key, grad_value = buffers
    queries, grads, keys, values, changes, results, logs, averages = memory
    key_full, query_full, query_free, grad_full, grad_free, change_full, change_free = barriers
    score_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, QUERIES, 16])
    sum_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH_BLOCK, 16])
    half_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16])
    left_layout: gl.constexpr = gl.DotOperandLayout(0, sum_layout, 2)
    query_layout: gl.constexpr = gl.SliceLayout(0, score_layout)
    key_layout: gl.constexpr = gl.SliceLayout(1, score_layout)
    number_layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    factor: gl.constexpr = SCALE * LOG2_E
    dtype: gl.constexpr = queries.dtype
    batch, first_head, start, first, last = tile_of(sizes)
    own_keys = start + which * KEYS + gl.arange(0, KEYS, layout=key_layout)
    own_rows = gl.arange(0, QUERIES, layout=query_layout)
    numbers = gl.arange(0, QUERIES, layout=number_layout)
    zeros = gl.zeros([KEYS, QUERIES], gl.float32, layout=score_layout)
    half_zeros = gl.zeros([QUERIES, HALF], gl.float32, layout=half_layout)
    found_key = gl.zeros([KEYS, WIDTH_BLOCK], gl.float32, layout=sum_layout)
    found_value = gl.zeros([KEYS, WIDTH_BLOCK], gl.float32, layout=sum_layout)
    all_keys = keys.reshape([GROUPS * KEYS, WIDTH_BLOCK])
    key = all_keys.slice(which * KEYS, KEYS)
    value = values.reshape([GROUPS * KEYS, WIDTH_BLOCK]).slice(which * KEYS, KEYS)
    key_half = all_keys.slice(which * HALF, HALF, dim=1)
    result = results.index(which)
    own_result = result.reshape([QUERIES, HALF])
    stage = 0
    phase = 0
    # Gradients of queries are multiplied one block late, so that the groups need not wait for each
    # other; the first product is one of zeros.
    changes.index(1).slice(which * KEYS, KEYS).store(zeros.to(dtype))
    fence_async_shared()
    mbarrier.arrive(change_full.index(1))
    found_query = half_zeros
    # Statistics are stored in whole blocks; those behind the last query hide it.
    filled = gl.cdiv(sizes[1], QUERIES) * QUERIES
    statistics += (batch * HEADS + first_head).to(gl.int64) * 2 * filled
    log, mean = read_statistics(statistics, filled, 0, first * QUERIES + numbers)
    # Blocks before this one have keys behind a query's number.
    middle = gl.minimum(last, first + GROUPS * KEYS // QUERIES)
    mbarrier.wait(key_full, 0)
    for own in range(OWN_HEADS):
        head = first_head + own
        if HAS_TAIL or (HAS_MASK and not HAS_MASK_ROWS):
            added = hidden(mask, mask_steps, sizes, batch, head, own_keys)
        for block in range(first, last):
            query = queries.index(stage).reshape([QUERIES, WIDTH_BLOCK])
            grad = grads.index(stage).reshape([QUERIES, WIDTH_BLOCK])
            late_change = changes.index(stage ^ 1).permute((1, 0))
            mbarrier.wait(query_full.index(stage), phase)
            scores = warpgroup_mma(key, query.permute((1, 0)), zeros, use_acc=False, is_async=True)
            # The copy of the last gradients has read them when this returns.
            tma.store_wait(0)
            gl.barrier()
            own_result.store(found_query)
            logs.index(which).store(log)
            averages.index(which).store(mean)
            fence_async_shared()
            gl.barrier()
            add_result(out_map, result, which, (batch, first_head, first, last), own, block, 2)
            mbarrier.wait(grad_full.index(stage), phase)
            change = warpgroup_mma(value, grad.permute((1, 0)), zeros, use_acc=False, is_async=True)
            relative = logs.index(which).load(query_layout)
            # Statistics of the next block are read while this one is computed.
            is_last = block + 1 == last
            next_row = gl.where(is_last, first, block + 1) * QUERIES
            next_own = gl.where(is_last, gl.minimum(own + 1, OWN_HEADS - 1), own)
            log, mean = read_statistics(statistics, filled, next_own, next_row + numbers)
            scores = warpgroup_mma_wait(1, deps=(scores,))
            scores = scores * factor
            if HAS_MASK and HAS_MASK_ROWS:
                rows = block * QUERIES + own_rows
                scores = with_mask_rows(
                    scores, mask, mask_steps, sizes, batch, head, rows, own_keys
                )
            if HAS_TAIL or (HAS_MASK and not HAS_MASK_ROWS):
                scores = scores + added[:, None]
            weights = gl.exp2(scores - relative[None, :])
            if IS_CAUSAL:
                if block < middle:
                    rows = block * QUERIES + own_rows
                    weights = gl.where(rows[None, :] >= own_keys[:, None], weights, 0.0)
            left = gl.convert_layout(weights.to(dtype), left_layout)
            found_value = warpgroup_mma(left, grad, found_value, is_async=True)
            change = warpgroup_mma_wait(1, deps=(change,))
            average = averages.index(which).load(query_layout)
            narrow = (weights * (change - average[None, :])).to(dtype)
            mbarrier.wait(change_free.index(stage), phase ^ 1 ^ stage)
            changes.index(stage).slice(which * KEYS, KEYS).store(narrow)
            fence_async_shared()
            mbarrier.arrive(change_full.index(stage))
            left = gl.convert_layout(narrow, left_layout)
            found_key = warpgroup_mma(left, query, found_key, is_async=True)
            mbarrier.wait(change_full.index(stage ^ 1), phase)
            found_query = warpgroup_mma(
                late_change, key_half, half_zeros, use_acc=False, is_async=True
            )
            found_value = warpgroup_mma_wait(2, deps=(found_value,))
            mbarrier.arrive(grad_free.index(stage))
            found_key = warpgroup_mma_wait(1, deps=(found_key,))
            mbarrier.arrive(query_free.index(stage))
            found_query = warpgroup_mma_wait(0, deps=(found_query,))
            mbarrier.arrive(change_free.index(stage ^ 1))
            stage, phase = next_stage(stage, phase)
    # The last two products have not been added yet.
    tma.store_wait(0)
    gl.barrier()
    own_result.store(found_query)
    fence_async_shared()
    gl.barrier()
    add_result(out_map, result, which, (batch, first_head, first, last), OWN_HEADS, first, 2)
    mbarrier.wait(change_full.index(stage ^ 1), phase)
    late_change = changes.index(stage ^ 1).permute((1, 0))
    found_query = warpgroup_mma(late_change, key_half, half_zeros, use_acc=False, is_async=True)
    found_query = warpgroup_mma_wait(0, deps=(found_query,))
    tma.store_wait(0)
    gl.barrier()
    own_result.store(found_query)
    fence_async_shared()
    gl.barrier()
    add_result(out_map, result, which, (batch, first_head, first, last), OWN_HEADS, first, 1)
    tma.store_wait(0)
    rows = start + which * KEYS + gl.arange(0, KEYS, layout=gl.SliceLayout(1, sum_layout))
    across = gl.arange(0, WIDTH_BLOCK, layout=gl.SliceLayout(0, sum_layout))
    place = batch.to(gl.int64) * sizes[2] + rows.to(gl.int64)
    place = (place * (HEADS // OWN_HEADS) + first_head // OWN_HEADS) * WIDTH
    places = place[:, None] + across[None, :]
    is_inside = (rows < sizes[2])[:, None] & (across < WIDTH)[None, :]
    gl.store(grad_value + places, found_value.to(dtype), mask=is_inside)
    gl.store(grad_key + places, (found_key * SCALE).to(dtype), mask=is_inside)


@gluon.jit
def flash_gradients(
    query,
    key,
    value,
    mask,
    grad,
    statistics,
    grad_query,
    grad_key,
    grad_value,
    sequences,
    length,
    key_count,
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
    grad_at,
    grad_batch,
    grad_head,
    grad_row,
    grad_column,
    query_map,
    key_map,
    value_map,
    grad_map,
    grad_query_map,
):
    """The kernel; maps have axes (batch, heads, rows, width), and hold the operands' steps."""
    dtype: gl.constexpr = query_map.dtype
    queries = gl.allocate_shared_memory(
        dtype, [STAGES, 1, 1, QUERIES, WIDTH_BLOCK], query_map.layout
    )
    grads = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, QUERIES, WIDTH_BLOCK], grad_map.layout)
    keys = gl.allocate_shared_memory(dtype, [1, 1, GROUPS * KEYS, WIDTH_BLOCK], key_map.layout)
    values = gl.allocate_shared_memory(dtype, [1, 1, GROUPS * KEYS, WIDTH_BLOCK], value_map.layout)
    change_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for(
        [GROUPS * KEYS, QUERIES], dtype
    )
    changes = gl.allocate_shared_memory(dtype, [STAGES, GROUPS * KEYS, QUERIES], change_layout)
    results = gl.allocate_shared_memory(
        gl.float32, [GROUPS, 1, 1, QUERIES, HALF], grad_query_map.layout
    )
    line: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    logs = gl.allocate_shared_memory(gl.float32, [GROUPS, QUERIES], line)
    averages = gl.allocate_shared_memory(gl.float32, [GROUPS, QUERIES], line)
    memory = (queries, grads, keys, values, changes, results, logs, averages)
    sizes = (sequences, length, key_count)
    mask_steps = (mask_at, mask_batch, mask_head, mask_row)
    key_full = mbarrier.allocate_mbarrier()
    change_full = mbarrier.allocate_mbarrier(batch=STAGES)
    change_free = mbarrier.allocate_mbarrier(batch=STAGES)
    query_full = mbarrier.allocate_mbarrier(batch=STAGES)
    query_free = mbarrier.allocate_mbarrier(batch=STAGES)
    grad_full = mbarrier.allocate_mbarrier(batch=STAGES)
    grad_free = mbarrier.allocate_mbarrier(batch=STAGES)
    mbarrier.init(key_full, count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(query_full.index(stage), count=1)
        mbarrier.init(query_free.index(stage), count=GROUPS)
        mbarrier.init(grad_full.index(stage), count=1)
        mbarrier.init(grad_free.index(stage), count=GROUPS)
        mbarrier.init(change_full.index(stage), count=GROUPS)
        mbarrier.init(change_free.index(stage), count=GROUPS)
    fence_async_shared()
    barriers = (key_full, query_full, query_free, grad_full, grad_free, change_full, change_free)
    buffers = (mask, statistics, grad_key, grad_value)
    gl.warp_specialize(
        [
            (compute, (0, buffers, mask_steps, grad_query_map, sizes, memory, barriers)),
            (compute, (1, buffers, mask_steps, grad_query_map, sizes, memory, barriers)),
            (load, (query_map, key_map, value_map, grad_map, sizes, memory, barriers)),
        ],
        [4, 1],
        [REGISTERS, LOADING_REGISTERS],
    )
