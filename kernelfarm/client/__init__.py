"""What runs inside the inference server: capture, the way to the farm, and the running of plans.

Imports torch and grpc, no compiler. Each idea is one module:

    capture, capture_sizes, export_reader   a traced module -> `kernelfarm.ir.graph_ir.Graph`
    farm_client, farm_errors                the farm's API : deadlines, retries, checked digests
    plan_runtime, plan_sizes, extern_steps  a plan and its kernels -> a callable
    loaders/                                binaries -> functions, one module for each device kind
    torch_backend                           `torch.compile(model, backend="kernelfarm")`
    compile_model                           `kernelfarm.compile(model, args, targets=[...])`
"""
