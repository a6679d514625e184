"""Sources of Triton kernels that are too large, never end, or are no Python, with their errors."""

from __future__ import annotations


def kernel_of(body: str, params: str = "x_ptr, n", before: str = "") -> str:
    """A kernel with this body."""
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    return f"{before}def kernel({params}):\n{lines}\n"


def bodies(message: str, *bodies: str) -> list[tuple[str, str]]:
    """Kernels with these bodies, which all get one error."""
    return [(kernel_of(body), message) for body in bodies]


HUGE = [
    *bodies(
        "expected at most 64 bits", f"a = {1 << 65}", f"a = 0x{'f' * 9000}", f"a = 0b{'1' * 99}"
    ),
    (f"A = 0x{'f' * 90}\ndef kernel(x):\n    pass\n", "expected at most 64 bits"),
    *bodies("is no Python", f"a = {'9' * 5000}"),
    *bodies("the exponent", "a = 9 ** 1000000000", "a = n ** 65", "n **= 1000000", "a = 2 ** -1"),
    *bodies("the shift", "a = 1 << 1000000000", "n <<= 64", "a = 1 << -1"),
    *bodies("the power or shift", "a = 9 ** 9 ** 9", "a = 1 << (1 << 40)", "a = n ** (n + n ** 9)"),
    ("S = 99999999\ndef kernel(n):\n    a = 1 << S\n", "the shift 99999999"),
    *bodies("characters; expected", f"a = '{'x' * 140000}'"),
    *bodies("text 'x", f"a = '{'x' * 201}'", f"tl.load('{'x' * 9999}')"),
    *bodies(
        "levels or", "a = " + "-" * 90 + "n", "a = " + "not " * 200 + "n", "a = " + "n+" * 300 + "n"
    ),
    *bodies(
        "levels or",
        "a = " + "n if n else " * 100 + "n",
        "a = n" + ".T" * 200,
        "a = n" + "[0]" * 200,
    ),
    *bodies("nested more deeply", "a = " + "-" * 60000 + "1", "a = " + "~" * 60000 + "1"),
    *bodies("brackets are open", "a = " + "(" * 90 + "n" + ")" * 90, "a = " + "[" * 50000),
    *bodies("brackets are open", "tl.load(" * 60 + "n" + ")" * 60),
    *bodies(
        "levels or",
        "\n".join("    " * i + "if n:" for i in range(90)) + "\n" + "    " * 90 + "pass",
    ),
    ("def kernel(x):\n" + "    x = x + 1\n" * 9000, "levels or"),
    ("\n".join(f"A{i} = 1" for i in range(300)) + "\ndef kernel(x):\n    pass\n", "300 constants"),
    ("\n".join(f"def f{i}(x):\n    pass" for i in range(65)) + "\n", "65 functions"),
    (f"def kernel({', '.join(f'p{i}' for i in range(129))}):\n    pass\n", "129 parameters"),
    ("def kernel(x):\n    a = '\u00e9'\n", "not ASCII"),
    ("def kernel(x):\n    \uff45val('1')\n", "not ASCII"),
    ("def kernel(x):\n    # \u202e\n    pass\n", "not ASCII"),
    ("def kernel(x):\n    pass\0\n", "not ASCII"),
]
ENDLESS = [
    *bodies(
        "expected a condition that can change", "while True:\n    pass", "while 1:\n    n += 1"
    ),
    *bodies("expected a condition that can change", "while n:\n    pass\nelse:\n    pass"),
    *bodies("repetitions unrolled", "for i in tl.static_range(1000000000):\n    pass"),
    *bodies("repetitions unrolled", "for i in tl.static_range(0, 99999, 2):\n    pass"),
    *bodies(
        "repetitions unrolled",
        "for i in tl.static_range(100):\n    for j in tl.static_range(100):\n        pass",
        "for i in tl.static_range(64):\n    if n:\n        for j in tl.static_range(65):\n"
        "            pass",
        "for i in tl.static_range(64):\n    while n:\n        for j in tl.static_range(65):\n"
        "            pass",
        "for i in tl.static_range(5000, 0, -1):\n    pass",
    ),
    ("N = 100000\ndef kernel(x):\n    for i in tl.static_range(N):\n        pass\n", "unrolled"),
    *bodies("a range with step 0", "for i in tl.static_range(0, 9, 0):\n    pass"),
    *bodies(
        "a loop over",
        "for i in n:\n    pass",
        "for i in [1, 2]:\n    pass",
        "for i in iter(n):\n    pass",
    ),
    *bodies(
        "a loop over",
        "for i in range(3):\n    pass\nelse:\n    pass",
        "for i in tl.load(n):\n    pass",
    ),
    ("def kernel(x):\n    kernel(x)\n", "call themselves"),
    ("def f(x):\n    g(x)\ndef g(x):\n    f(x)\ndef kernel(x):\n    f(x)\n", "call themselves"),
    (
        "def f0(x):\n    pass\n"
        + "".join(f"def f{i}(x):\n    f{i - 1}(x)\n    f{i - 1}(x)\n" for i in range(1, 40)),
        "calls inlined",
    ),
]
BROKEN = [
    *bodies("is no Python", "a = '", "'a' 'b", "1 = x_ptr", "n() = 1", "a = 0777", "f'{'", "\\"),
    *(
        (text, "is no Python")
        for text in (
            "def kernel(x:\n    pass\n",
            "def kernel(x)\n    pass\n",
            "def\n",
            "    pass\n",
            "def kernel(x):\npass\n",
            "def kernel(x):\n\tpass\n        pass\n",
            "def kernel(x, y):\n    pass )\n",
            "def kernel(x=1, y):\n    pass\n",
            "\x0c\x0b",
            "?",
            "(",
            "'''",
        )
    ),
]
