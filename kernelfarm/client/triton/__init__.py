"""Triton kernels of users: their source as text, their signatures, and compiling them alone.

Nothing here imports Triton: a kernel is read from the function object that the user passes.
"""
