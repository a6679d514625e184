"""What runs inside the inference server. Imports torch and grpc, no compiler.

    torch_backend, compile_model   `torch.compile(backend="kernelfarm")`, `kernelfarm.compile(...)`
    diagnostics/                   what the command line shows of programs, traces and the disk
    traces/                        a trace by the digest of its Dynamo graph: disk, farm
    programs/                      a program by its key: memory, disk, farm
    runtime/                       a plan and its kernels -> a callable
    farm/                          the farm's API: deadlines, retries, checked answers
    capture/                       a traced module -> `kernelfarm.ir.graph_ir.Graph`
    disk/                          what one process fetched, for the next one
    loaders/                       binaries -> functions, one module for each kind of device
    custom_operators/, pytorch/    operators of our own in torch; what is private in PyTorch
    process/                       forks, and the end of the process
    settings, counters             what users set, and what was counted

Each imports only what stands below it.
"""
