# An image for the chart's warming jobs (`warming.image`): an image of kernelfarm, torch, and the models' code.
# Replace the examples by your models, and the versions of torch and transformers by those of your
# inference servers: traces belong to a version of torch. From the root of the repository:
#
#     docker build -f examples/warming.Dockerfile --build-arg KERNELFARM_IMAGE=registry.example/kernelfarm/frontend:0.1.0 \
#       --build-arg PIP_FLAGS="--index-url https://download.pytorch.org/whl/cpu --extra-index-url https://pypi.org/simple" .
ARG KERNELFARM_IMAGE=localhost/kernelfarm/frontend:0.1.0

# The ARG above has a tag.
# hadolint ignore=DL3006
FROM ${KERNELFARM_IMAGE}
USER 0
ARG TORCH=torch==2.13.0
# For example an index of wheels without CUDA, which are smaller by gigabytes.
ARG PIP_FLAGS=""
COPY constraints.txt /tmp/constraints.txt
# The base image's own pip installs into kernelfarm's environment, which has none.
# hadolint ignore=SC2086
RUN "$(python -c 'import sys; print(sys.base_prefix)')/bin/python3" -m pip --python /opt/kernelfarm/bin/python \
      install --no-cache-dir ${PIP_FLAGS} -c /tmp/constraints.txt \
      "${TORCH}" transformers==5.23.0 "kernelfarm[warm]" \
    && rm /tmp/constraints.txt
COPY examples /opt/models/examples
ENV PYTHONPATH=/opt/models
USER 10001
CMD ["kernelfarm", "warm", "--help"]
