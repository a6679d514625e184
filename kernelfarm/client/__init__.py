"""The client: runs inside the inference server. It imports torch and grpc, but no compiler.

    packaged                       `kernelfarm.packaged(...)`
    torch_backend, compile_model   `torch.compile(backend="kernelfarm")`, `kernelfarm.compile(...)`
    bundle/                        exports and imports cache bundles
    diagnostics/                   what the command line shows of programs, traces and the disk tier
    warming/                       cache-warming jobs, coverage certificates
    packages/                      finds the package of a call before it is traced: disk, farm
    drop_in/                       the caches of Triton and Inductor at the farm
    farm_compiler                  compiles functional graphs through the farm
    precompiled/                   graphs in the packages of PyTorch's own precompilation
    traces/                        finds a trace by the digest of its Dynamo graph: disk, farm
    programs/                      finds a program by its key: memory, disk, farm
    runtime/                       turns a plan and its kernels into a callable
    farm/                          calls the farm: deadlines, retries, verified responses
    capture/                       turns a traced module into a `kernelfarm.ir.graph_ir.Graph`
    disk/                          the disk tier, which the processes of one user share
    loaders/                       load binaries; one module for each kind of device
    custom_operators/              kernelfarm's own operators in torch
    process/                       forks and the end of the process
    settings, counters             the client's settings and counters
    pytorch/                       element types, tensor creation, PyTorch's private names

Each package imports only packages below it in this list.
"""
