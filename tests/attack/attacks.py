"""The attacks by name: messages, credential, and number of callers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tests.support import hostile_requests
from tests.support.attacked_farm import Credential
from tests.support.hostile_requests import Template

COMPILE = "/kernelfarm.v1.CompileService/Compile"
LARGEST_BYTES = 15 * hostile_requests.MIB
"""A size that a farm accepts by default; it refuses the messages of 30 MiB by their length."""
EXPLAIN = "/kernelfarm.v1.CacheService/ExplainMiss"


@dataclass(frozen=True)
class Attack:
    """`callers` send one message after another, at most `calls_per_s` in total.

    `timeout_s` is the deadline of each call; `fault` is the number of the weakness that it targets.
    """

    name: str
    fault: int
    method: str
    credential: Credential
    make: Callable[[], Template]
    callers: int = 16
    calls_per_s: float = 100.0
    timeout_s: float = 20.0


ATTACKS: tuple[Attack, ...] = (
    Attack(
        "cat of 13 dynamic inputs",
        *(1, COMPILE, Credential.MEMBER),
        hostile_requests.cat_of_dynamic_inputs,
    ),
    Attack(
        "product of 24 extents",
        *(1, COMPILE, Credential.MEMBER),
        hostile_requests.product_of_extents,
    ),
    Attack(
        "ExplainMiss of 2.7 MB",
        *(1, EXPLAIN, Credential.READER),
        hostile_requests.explained_products,
    ),
    Attack(
        "30 MiB without a token",
        *(3, COMPILE, Credential.NONE),
        hostile_requests.many_empty_nodes,
    ),
    Attack(
        "30 MiB with an expired token",
        *(3, COMPILE, Credential.EXPIRED),
        hostile_requests.many_empty_nodes,
    ),
    Attack(
        "30 MiB with a valid token",
        *(3, COMPILE, Credential.MEMBER),
        hostile_requests.many_empty_nodes,
    ),
    Attack(
        "15 MiB with a valid token",
        *(3, COMPILE, Credential.MEMBER),
        partial(hostile_requests.many_empty_nodes, LARGEST_BYTES),
    ),
    Attack(
        "operator names of 15 MiB",
        *(4, COMPILE, Credential.MEMBER),
        partial(hostile_requests.long_operator_name, LARGEST_BYTES),
    ),
    Attack(
        "a flood of failing graphs",
        *(4, COMPILE, Credential.MEMBER),
        hostile_requests.failing_graph,
        calls_per_s=400.0,
    ),
    Attack(
        "250 tangents for sm_90a",
        *(6, COMPILE, Credential.MEMBER),
        hostile_requests.heavy_kernel,
        timeout_s=60.0,
    ),
)


def attack_named(name: str) -> Attack:
    """The attack of this name.

    Raises:
        ValueError: no attack has this name.
    """
    for attack in ATTACKS:
        if attack.name == name:
            return attack
    raise ValueError(f"no attack {name!r}; expected one of {', '.join(a.name for a in ATTACKS)}")
