"""Rules of the intermediate representations, one small function for each."""

from kernelfarm.ir.check_graph import check_client_graph
from kernelfarm.ir.verify.graph import verify_graph, verify_prims
from kernelfarm.ir.verify.kernel import verify_kernel
from kernelfarm.ir.verify.program import verify_program

__all__ = ["check_client_graph", "verify_graph", "verify_kernel", "verify_prims", "verify_program"]
