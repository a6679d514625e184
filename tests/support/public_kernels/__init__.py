"""Kernels of public packages (Liger, FlagGems), called in models.

kernel       what a case is: a model, its arguments, and what it should return
liger        Liger's kernels
flag_gems    FlagGems' kernels
captures     all of them, captured where there is no GPU; a program that a farm compiles them by
"""
