"""The codecs: the only code that converts intermediate representations to protobuf and back.

Every `*_from_proto` treats its message as hostile, and raises a `CallerError` that says what was
seen and what was expected.
"""

from kernelfarm.wire.artifact import (
    artifact_to_proto,
    binary_digest,
    built_kernel_from_proto,
    check_artifact,
    digests_of,
    stages_to_proto,
)
from kernelfarm.wire.dtype import dtype_from_proto, dtype_to_proto
from kernelfarm.wire.expr import expr_from_proto, expr_to_proto
from kernelfarm.wire.graph import graph_from_proto, graph_to_proto
from kernelfarm.wire.kernel import kernel_from_proto, kernel_to_proto
from kernelfarm.wire.launch_facts import (
    guard_from_proto,
    guard_to_proto,
    launch_facts_from_proto,
    launch_facts_to_proto,
)
from kernelfarm.wire.plan import plan_from_proto, plan_to_proto
from kernelfarm.wire.tensor_type import tensor_type_from_proto, tensor_type_to_proto

__all__ = [
    "artifact_to_proto",
    "binary_digest",
    "built_kernel_from_proto",
    "check_artifact",
    "digests_of",
    "dtype_from_proto",
    "dtype_to_proto",
    "expr_from_proto",
    "expr_to_proto",
    "graph_from_proto",
    "graph_to_proto",
    "guard_from_proto",
    "guard_to_proto",
    "kernel_from_proto",
    "kernel_to_proto",
    "launch_facts_from_proto",
    "launch_facts_to_proto",
    "plan_from_proto",
    "plan_to_proto",
    "stages_to_proto",
    "tensor_type_from_proto",
    "tensor_type_to_proto",
]
