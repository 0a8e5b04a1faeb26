# fedapm with Flower on the CPU, as a user without rights.
#
#   docker build --tag fedapm .
#   docker run --rm --volume "$PWD/runs:/runs" --user "$(id -u)" fedapm run --data digits --rounds 5 --out /runs/one
#
# compose.yaml starts a whole federation. docs/how-to/containers.md has more.

FROM python:3.13-slim AS install
ARG EXTRAS=flower
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu \
    PIP_NO_CACHE_DIR=1
WORKDIR /source
COPY LICENSE README.md constraints.txt hatch_build.py pyproject.toml ./
COPY src src
RUN python -m venv /opt/fedapm \
    && /opt/fedapm/bin/pip install --constraint constraints.txt ".[${EXTRAS}]"

FROM python:3.13-slim
ENV FEDAPM_EXCHANGE=/exchange \
    FEDAPM_HOME=/var/lib/fedapm \
    FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 \
    FLWR_DISABLE_UPDATE_CHECK=1 \
    FLWR_HOME=/var/lib/fedapm/flower \
    FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.1 \
    FLWR_TELEMETRY_ENABLED=0 \
    MPLCONFIGDIR=/tmp/matplotlib \
    PATH=/opt/fedapm/bin:$PATH \
    PYTHONUNBUFFERED=1
COPY --from=install /opt/fedapm /opt/fedapm
COPY docker/federation /usr/local/bin/federation
COPY examples/digits-flower.toml /etc/fedapm/experiment.toml
# a volume takes over the owner of the folder it is mounted on
RUN useradd --uid 1000 --home-dir /var/lib/fedapm --create-home fedapm \
    && install --directory --owner fedapm --mode 700 /var/lib/fedapm /exchange \
    && install --directory --owner fedapm /runs
USER 1000
WORKDIR /runs
ENTRYPOINT ["fedapm"]
CMD ["--help"]
