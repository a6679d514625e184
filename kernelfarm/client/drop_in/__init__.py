"""The caches of Triton and Inductor at the farm, for people who keep their compiler.

    triton_cache      the class that `TRITON_CACHE_MANAGER` names
    inductor_cache    `kernelfarm.use_as_inductor_cache()`
    autoload          the same by a variable of the environment
    shared_files      files at the farm: found, checked and published like traces
    single_flight     one process makes a missing entry, and others wait for it
    fail_open         no error of the farm reaches the compiler of the user

The content is code: Triton loads binaries, and Inductor unpickles graphs. A client that opted in
(`KERNELFARM_DROP_IN_CACHES=trusted`) uses it only if a pinned key for traces signed it.
"""
