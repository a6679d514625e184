"""Launches of Inductor: `python -m tests.support.inductor_launches NAME` compiles one real input.

Prints one JSON line: the calls in `call` of Inductor's Python wrapper. Extern operators have the
names of the wrapper, without overloads.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator

from examples.real_inputs import WHOLE_GRAPHS

_OWN = re.compile(r"cpp_fused_\w+")
_EXTERN = re.compile(r"extern_kernels\.(\w+)|torch\.ops\.(\w+\.\w+)(?:\.\w+)?|(aten\.\w+)\.\w+")
_CONTRACTION = re.compile(
    r"(?:\w+\.)?_?(mm|addmm|bmm|baddbmm|dot|mv|addmv|linear\w*|\w*convolution\w*"
    r"|scaled_dot_product_\w+|_scaled_dot_product_\w+|mkl_linear|_linear_pointwise)"
)


def main(name: str) -> None:
    import torch  # noqa: PLC0415 (`count_launches` does not need it)
    from torch._inductor.utils import run_and_get_code  # noqa: PLC0415

    source = WHOLE_GRAPHS[name]()
    with torch.no_grad():
        compiled = torch.compile(source.model, backend="inductor")
        _, wrappers = run_and_get_code(compiled, *source.args)
    print(json.dumps(count_launches(wrappers)))


def count_launches(wrappers: list[str]) -> dict[str, object]:
    """Counts calls of kernels and of extern operators in `call` of Inductor's wrappers."""
    called = [name for wrapper in wrappers for name in _calls_of(wrapper)]
    own = [name for name in called if _OWN.fullmatch(name)]
    externs = [next(filter(None, m.groups())) for name in called if (m := _EXTERN.fullmatch(name))]
    contractions = Counter(name for name in externs if _CONTRACTION.fullmatch(name))
    return {
        "kernels": len(own),
        "distinct": len(set(own)),
        "contractions": dict(contractions),
        "others": dict(Counter(externs) - contractions),
    }


def _calls_of(wrapper: str) -> Iterator[str]:
    """The dotted names that functions named `call` call, once for each call site."""
    for function in ast.walk(ast.parse(wrapper)):
        if isinstance(function, ast.FunctionDef) and function.name == "call":
            for node in ast.walk(function):
                if isinstance(node, ast.Call):
                    yield ast.unparse(node.func)


if __name__ == "__main__":
    main(sys.argv[1])
