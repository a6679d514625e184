"""`python -m examples.plain_client`: compiles a saved graph, runs it, and compares with NumPy."""

from __future__ import annotations

import argparse
import platform
from pathlib import Path

import numpy as np

from examples.plain_client.compiled import compile_graph, read_graph
from examples.plain_client.repeat import open_channel
from examples.plain_client.run import Array, run
from kernelfarm.signing.key_files import read_keyring

GRAPH = Path(__file__).parents[1] / "graphs" / "row_softmax.json"
_TARGETS = {"x86_64": "cpu:x86-64-v3", "aarch64": "cpu:aarch64"}


def main() -> None:
    """Runs the example."""
    arguments = _parser().parse_args()
    keyring = read_keyring(arguments.keys)
    with open_channel(arguments.endpoint) as channel:
        compiled = compile_graph(channel, read_graph(arguments.graph), arguments.target, keyring)
    print(f"program {compiled.program.key.hex()} for {compiled.program.target}")
    random = np.random.default_rng(0)
    a, b = (random.normal(size=(64, 128)).astype(np.float32) for _ in range(2))
    (result,) = run(compiled, [a, b])
    error = np.max(np.abs(result - expected(a, b)))
    print(f"largest difference from NumPy: {error:.1e}")
    if error > 1e-3:  # results reach 1000, and f32 has seven digits
        raise SystemExit("the result is wrong")


def expected(a: Array, b: Array) -> Array:
    """What the graph computes, in NumPy with 64-bit floats."""
    sums = (np.ceil(a) + np.floor(b)).astype(np.float64).sum(axis=-1)
    powers = np.exp(sums - sums.max())
    return np.asarray((powers / powers.sum() * 10) ** 3)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--endpoint", default="127.0.0.1:50051", help="HOST:PORT or dns:///NAME:PORT"
    )
    parser.add_argument("--keys", type=Path, required=True, help="the farm's public.json")
    parser.add_argument("--graph", type=Path, default=GRAPH, help="a graph saved as JSON")
    parser.add_argument("--target", default=_TARGETS[platform.machine()], help="a CPU target")
    return parser


main()
