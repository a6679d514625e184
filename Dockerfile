# One image for all services; the command chooses the service. It has no torch, needs no accelerator,
# and does not run as root. deploy/README.md says how to build and run it.
#
# For a reproducible image, set PYTHON_IMAGE with its digest, and SOURCE_DATE_EPOCH; constraints.txt pins
# every package.
ARG PYTHON_IMAGE=docker.io/library/python:3.11-slim-bookworm

# Dependencies change rarely, so they are a layer that new versions of kernelfarm share.
FROM ${PYTHON_IMAGE} AS dependencies
# If SOURCE_DATE_EPOCH is set, bytecode refers to its source by content instead of by time.
ARG SOURCE_DATE_EPOCH=0
ENV SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH} \
    PIP_CONSTRAINT=/src/constraints.txt \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ROOT_USER_ACTION=ignore
# Only this stage needs binutils, to strip libraries, so its version does not matter.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends binutils \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY constraints.txt pyproject.toml ./
RUN python -m venv --without-pip /opt/kernelfarm \
    && python -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; print(*project["dependencies"], *project["optional-dependencies"]["farm"], sep="\n")' > requirements.txt \
    && python -m pip --python /opt/kernelfarm/bin/python install -r requirements.txt
# Only the lowering tool and the license of triton-ascend are needed: its Python package is also named
# `triton`.
RUN python -m pip install --no-deps --no-compile --target /ascend triton-ascend==3.2.0 \
    && mkdir -p /opt/kernelfarm/share/kernelfarm/triton-ascend/triton/backends/ascend \
    && mv /ascend/triton/backends/ascend/triton-adapter-opt \
       /opt/kernelfarm/share/kernelfarm/triton-ascend/triton/backends/ascend/ \
    && mv /ascend/*.dist-info /opt/kernelfarm/share/kernelfarm/triton-ascend/
# Removes Triton's profiler, which needs a GPU, and its debug symbols: two thirds of the wheel.
WORKDIR /opt/kernelfarm/lib/python3.11/site-packages/triton
RUN rm -r backends/nvidia/lib/cupti backends/nvidia/lib/cupti-blackwell \
       _C/libproton.so profiler instrumentation \
    && strip --strip-unneeded _C/libtriton.so

FROM dependencies AS package
WORKDIR /src
COPY README.md LICENSE NOTICE ./
COPY kernelfarm kernelfarm
COPY frontend_svc frontend_svc
COPY optimizer_svc optimizer_svc
COPY codegen_svc codegen_svc
RUN python -m pip --python /opt/kernelfarm/bin/python install --no-deps --prefix /package .

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="kernelfarm" \
      org.opencontainers.image.description="A compile farm for AI kernels: all services" \
      org.opencontainers.image.licenses="Apache-2.0"
ARG SOURCE_DATE_EPOCH=0
# The base image has no bytecode, and the user of this image cannot write it: without this, every start
# would compile the standard library again.
RUN python -m compileall -q --invalidation-mode unchecked-hash -x 'site-packages|test|idlelib' /usr/local/lib/python3.11 \
    && useradd --no-log-init --uid 10001 --user-group --shell /usr/sbin/nologin --home-dir /var/lib/kernelfarm --create-home kernelfarm
COPY --from=dependencies /opt/kernelfarm /opt/kernelfarm
COPY --from=package /package /opt/kernelfarm
COPY LICENSE NOTICE /usr/share/doc/kernelfarm/
# Other containers cannot reach a container's loopback, so services listen on all interfaces.
ENV PATH=/opt/kernelfarm/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    KERNELFARM_FRONTEND_LISTEN=0.0.0.0:50051 \
    KERNELFARM_OPTIMIZER_LISTEN=0.0.0.0:50052 \
    KERNELFARM_CODEGEN_LISTEN=0.0.0.0:50053
USER 10001
WORKDIR /var/lib/kernelfarm
EXPOSE 50051
# Services drain on SIGTERM.
STOPSIGNAL SIGTERM
# For the frontend, the default command; deploy/compose.yaml has the checks of the other services.
HEALTHCHECK --interval=8s --timeout=5s --start-period=60s --retries=2 \
    CMD ["python", "-m", "kernelfarm.service.probes", "127.0.0.1:50051"]
CMD ["python", "-m", "frontend_svc"]
