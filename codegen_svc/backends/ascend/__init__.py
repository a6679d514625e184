"""Huawei Ascend: loop kernels through Triton's IR and Triton-Ascend's adapter to Linalg."""
