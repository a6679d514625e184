"""The bytes that a kernel moves, by which loops are ordered and divided into blocks.

Memory moves whole sectors (cache lines on a processor). So the bytes that a block of points moves
depend on which points it holds. `access_patterns` turns a kernel's accesses into numbers, `model`
counts their sectors, `block_forms` and `loop_order` choose what moves the fewest bytes. The
optimizer orders axes by it, and all emitters divide kernels into blocks by it.
"""

from kernelfarm.traffic.access_patterns import LIKELY_SIZE as LIKELY_SIZE
from kernelfarm.traffic.access_patterns import KernelAccesses as KernelAccesses
from kernelfarm.traffic.access_patterns import kernel_accesses as kernel_accesses
from kernelfarm.traffic.block_forms import BlockChoice as BlockChoice
from kernelfarm.traffic.block_forms import BlockForm as BlockForm
from kernelfarm.traffic.block_forms import can_tile as can_tile
from kernelfarm.traffic.block_forms import choose_block as choose_block
from kernelfarm.traffic.block_forms import reads_columns as reads_columns
from kernelfarm.traffic.block_forms import row_and_column_blocks as row_and_column_blocks
from kernelfarm.traffic.held_rows import held_row_bytes as held_row_bytes
from kernelfarm.traffic.held_rows import row_loads as row_loads
from kernelfarm.traffic.loop_order import keeps_outer_order as keeps_outer_order
from kernelfarm.traffic.loop_order import keeps_reduction_order as keeps_reduction_order
from kernelfarm.traffic.loop_order import order_axes as order_axes
