"""Writes at indices, updates in place, gathers, cats, windows, layouts and sizes that vary."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)

from tests.gpu.case import Case, case, distinct, floats, places


def scatter_cases() -> Iterator[Case]:
    """Writes at indices: with atomics where places repeat, plain where they do not."""
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        yield case(
            f"added at places {dtype}",
            lambda x, rows: torch.zeros_like(x[:12]).index_add(0, rows, x),
            lambda dtype=dtype: (floats(60, 33, dtype=dtype), places(60, below=12)),
        )
    yield case(
        "counted at places",
        lambda x, at: (
            torch.zeros(50, dtype=torch.int64, device=x.device).scatter_add(0, at, x),
            torch.zeros(50, dtype=torch.int32, device=x.device).index_add(0, at, x.int()),
        ),
        lambda: (places(5000, below=9), places(5000, below=50)),
        is_exact=True,
    )
    yield case(
        "set at distinct places",
        lambda x, at, y: (
            x.scatter(1, at, y),
            x.index_copy(1, at[0], y),
            x.index_fill(0, at[0, :3], 7),
        ),
        lambda: (floats(40, 40), distinct(40, 40, dtype=torch.int64) + 20, floats(40, 40, seed=1)),
        is_exact=True,
    )
    for how in ("amax", "amin", "sum", "mean", "prod"):
        yield case(
            f"reduced at places by {how}",
            lambda x, at, how=how: (
                x.scatter_reduce(1, at, x, how),
                x.scatter_reduce(1, at, x, how, include_self=False),
            ),
            lambda: (floats(33, 70), places(33, 70, below=70)),
        )
    yield case(
        "index_put",
        _index_put,
        lambda: (floats(30, 20), places(64, below=30), floats(64, 20, seed=2)),
    )
    yield case(
        "masked writes",
        lambda x, y: (x.masked_scatter(x > 0, y), x.masked_fill(x > 0, 2.0)),
        lambda: (floats(40, 50), floats(40, 50, seed=1)),
        is_exact=True,
    )
    yield case(
        "embedding bags",
        lambda w, at: F.embedding_bag(at, w, mode="mean"),
        lambda: (floats(50, 16), places(8, 9, below=50)),
    )


def _index_put(x: torch.Tensor, at: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    added = x.index_put((at,), y, accumulate=True)
    changed = x.clone()
    changed[at % 5] = 0.5
    return added, changed


def update_cases() -> Iterator[Case]:
    """Inputs that are changed in place."""
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        yield case(
            f"a key-value cache {dtype}",
            _cached,
            lambda dtype=dtype: (
                floats(2, 4, 48, 16, dtype=dtype),
                floats(2, 4, 3, 16, dtype=dtype, seed=1),
                torch.tensor([7, 8, 9]),
            ),
        )
    yield case(
        "an optimizer's step", _stepped, lambda: tuple(floats(1000, seed=n) for n in range(3))
    )
    yield case(
        "running statistics",
        lambda x, m, v: F.batch_norm(x, m, v, training=True),
        lambda: (floats(8, 16, 9, 9), floats(16), floats(16).abs() + 1),
    )
    yield case("a slice in place", _sliced, lambda: (floats(33, 70), floats(33, 70, seed=1)))


def _cached(keys: torch.Tensor, new: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    keys.index_copy_(2, at, new)
    return keys.sum(2) * 0.5


def _stepped(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    m.mul_(0.9).add_(g, alpha=0.1)
    p.sub_(0.01 * m / (g.square().sqrt() + 1e-8))
    return p.abs().amax()


def _sliced(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x[:, 3:5] = y[:, :2]
    x[5].mul_(2)
    return x + 1


def gather_cases() -> Iterator[Case]:
    """Reads at indices; halves and searches."""
    yield case(
        "gathers",
        lambda x, at: (
            x.gather(1, at),
            x[at[0]],
            x.index_select(1, at[1]),
            x.take_along_dim(at, 0),
        ),
        lambda: (floats(40, 40), places(40, 40, below=40)),
        is_exact=True,
    )
    yield case(
        "negative indices",
        lambda x, at: x[at - 20, at],
        lambda: (floats(40, 40), places(90, below=20)),
        is_exact=True,
    )
    for dtype in (torch.float32, torch.bfloat16):
        yield case(
            f"embeddings {dtype}",
            lambda w, at: F.layer_norm(F.embedding(at, w) * 2, (64,)),
            lambda dtype=dtype: (floats(1000, 64, dtype=dtype), places(4, 77, below=1000)),
        )
    yield case(
        "searches",
        lambda edges, x: (torch.searchsorted(edges, x), torch.bucketize(x, edges)),
        lambda: (floats(5000).sort().values, floats(300, seed=1)),
        is_exact=True,
    )
    yield case(
        "one hot, and the way back",
        lambda at: (F.one_hot(at, 30), F.one_hot(at, 30).argmax(-1)),
        lambda: (places(50, below=30),),
        is_exact=True,
    )
    yield case(
        "losses",
        lambda x, at: (F.cross_entropy(x, at), F.nll_loss(x, at, reduction="none")),
        lambda: (floats(70, 300), places(70, below=300)),
    )


def layout_cases() -> Iterator[Case]:
    """Cats by pieces, windows, padding, odd layouts, sizes that vary."""
    for count in (2, 9, 23, 40):
        yield case(
            f"a cat of {count}",
            lambda *x: (torch.cat([t * 2 for t in x], 1), torch.stack(x)),
            lambda count=count: tuple(floats(11, 6, seed=n) for n in range(count)),
        )
    yield case(
        "a cat of unequal pieces",
        lambda *x: torch.cat([t + n for n, t in enumerate(x)], -1).softmax(-1),
        lambda: tuple(floats(5, 3 + n, seed=n) for n in range(12)),
    )
    yield case("windows", _windows, lambda: (floats(2, 6, 21, 19),))
    yield case(
        "padding and rolls",
        lambda x: (
            F.pad(x, (2, 3, 1, 1), "reflect"),
            F.pad(x, (1, 2), value=3.0),
            x.roll(3, 1),
            x.flip(0),
        ),
        lambda: (floats(3, 20, 20),),
        is_exact=True,
    )
    yield case(
        "turned and expanded",
        lambda x, y: (x.t().contiguous() + y, (x @ y).softmax(0), x[::2, 1::3] * 2),
        lambda: (floats(40, 60), floats(40, 60, seed=1).t()),
    )
    yield case(
        "channels last",
        lambda x: F.silu(x) + x.mean((2, 3), keepdim=True),
        lambda: (floats(2, 16, 15, 15).to(memory_format=torch.channels_last),),
    )
    for offset in (1, 3, 8):
        yield case(
            f"memory that begins {offset} elements later",
            lambda x, y: ((x * 3).sin() + y, x.softmax(-1), x.sum(0)),
            lambda: (floats(64, 256), floats(64, 256, seed=1)),
            offset=offset,
        )
    yield case(
        "unaligned halves",
        lambda x, y: F.layer_norm(x * y, (256,)),
        lambda: tuple(floats(64, 256, dtype=torch.float16, seed=n) for n in range(2)),
        offset=1,
    )
    yield from _varying()


def _windows(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    best, where = F.max_pool2d(x, 3, 2, 1, return_indices=True)
    grown = F.interpolate(x, scale_factor=2, mode="bilinear")
    columns = F.unfold(x, 3, padding=1)
    return best, where, F.avg_pool2d(x, 2), F.adaptive_avg_pool2d(x, 5), grown, columns


def _varying() -> Iterator[Case]:
    sizes = ((33, 70), (64, 128), (7, 1000), (130, 65), (2, 4097))
    makes = [lambda size=size: (floats(*size),) for size in sizes]
    yield case(
        "rows of any size", lambda x: (x.softmax(-1), x.sum(0), F.gelu(x)), *makes, dynamic=True
    )
    yield case(
        "long rows of any size",
        lambda x: F.layer_norm(x, x.shape[-1:]),
        *(lambda n=n: (floats(3, n),) for n in (100, 20000, 70001)),
        dynamic=True,
    )
    yield case("scans of any size", lambda x: x.cumsum(-1), *makes, dynamic=True)
    yield case(
        "cats of any size",
        lambda x, y: torch.cat([x, y * 2], 0).amax(1),
        *(lambda n=n: (floats(n, 9), floats(n + 3, 9, seed=1)) for n in (5, 50, 501)),
        dynamic=True,
    )
    yield case(
        "gathers of any size",
        lambda w, at: w[at].mean(1),
        *(lambda n=n: (floats(n, 16), places(7, n, below=n)) for n in (10, 100, 999)),
        dynamic=True,
    )
