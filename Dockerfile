# syntax=docker/dockerfile:1
# One image for every room; the command chooses the room. No torch, no accelerator.
FROM docker.io/library/python:3.11-slim AS build
WORKDIR /src
RUN python -m venv /opt/kernelfarm
COPY constraints.txt ./
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY kernelfarm kernelfarm
COPY frontend_svc frontend_svc
COPY optimizer_svc optimizer_svc
COPY codegen_svc codegen_svc
RUN /opt/kernelfarm/bin/pip install --no-cache-dir -c constraints.txt '.[farm]' \
    && /opt/kernelfarm/bin/pip install --no-cache-dir --no-deps \
       --target /opt/kernelfarm/share/kernelfarm/triton-ascend triton-ascend==3.2.0

FROM docker.io/library/python:3.11-slim
LABEL org.opencontainers.image.title="kernelfarm" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --system --uid 10001 --home-dir /var/lib/kernelfarm --create-home kernelfarm
COPY --from=build /opt/kernelfarm /opt/kernelfarm
COPY LICENSE NOTICE /usr/share/doc/kernelfarm/
ENV PATH=/opt/kernelfarm/bin:$PATH PYTHONUNBUFFERED=1
USER 10001
WORKDIR /var/lib/kernelfarm
# The rooms drain on SIGTERM; see `kernelfarm up --help` for all of them on one machine.
STOPSIGNAL SIGTERM
EXPOSE 50051
CMD ["python", "-m", "frontend_svc"]
