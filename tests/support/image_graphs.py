"""Graphs of images, whose layouts the optimizer chooses."""

from __future__ import annotations

GPU = "cuda:sm_90a"
"""A target whose convolutions prefer channels last."""

TWO_CONVOLUTIONS = """\
graph prims 1
%0: f16[2, 8, 16, 16]@[2048, 256, 16, 1] = input "x"
%1: f16[16, 8, 3, 3]@[72, 9, 3, 1] = input "w"
%2: f16[8, 16, 1, 1]@[16, 1, 1, 1] = input "v"
%3: f16[2, 16, 16, 16]@[4096, 256, 16, 1] = extern(%0, %1; is_contraction=true, node=0, \
op="aten.convolution.default")
%4: f16[2, 16, 16, 16] = tanh(%3)
%5: f16[2, 8, 16, 16]@[2048, 256, 16, 1] = extern(%4, %2; is_contraction=true, node=1, \
op="aten.convolution.default")
%6: f16[2, 8, 16, 16] = exp(%5)
return %6: f16[2, 8, 16, 16]@[2048, 256, 16, 1]
"""
