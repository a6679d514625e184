"""What runs inside the inference server: capture, the way to the farm, and the running of plans.

Imports torch and grpc, no compiler. Each idea is one module:

    capture, capture_sizes, export_reader   a traced module -> `kernelfarm.ir.graph_ir.Graph`
    program_store, program_tiers            a program by its key: memory, disk, farm
    farm_client, checked_program, trust     the farm's API : deadlines, retries, checked answers
    disk_tier, disk_files, disk_sweep       what one process fetched, for the next one
    invalidation_watch, known_epochs        what became stale, heard of in the background
    process_end                             threads and calls end before Python finalizes
    live_program                            eager until a program is there, and once it is stale
    plan_runtime, plan_layout, plan_steps   a plan and its kernels -> a callable
    loaders/                                binaries -> functions, one module for each device kind
    torch_backend                           `torch.compile(model, backend="kernelfarm")`
    compile_model                           `kernelfarm.compile(model, args, targets=[...])`
"""
