# A GPU host in a container, for simulation: agent, host worker, and a CPU build of torch for the programs of jobs.
# A real GPU host runs both under systemd instead (docs/install.md): in a container, programs end with it.
#
#   docker build --file deploy/host.Dockerfile --tag muster-host:0.1.0 .

FROM python:3.11.14-slim-bookworm AS build
# Where CPU builds of torch are; `--build-arg TORCH_INDEX=` takes torch from pip's own index instead.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
RUN python -m venv /opt/muster/venv
COPY constraints.txt pyproject.toml ./
# Torch first, in a layer of its own: it is large and seldom changes. Without numpy it warns each program of a job.
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=secret,id=pip,target=/etc/pip.conf \
    PIP_CONSTRAINT=constraints.txt /opt/muster/venv/bin/pip install --upgrade pip && \
    /opt/muster/venv/bin/pip install --constraint constraints.txt \
        ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} torch==2.13.0${TORCH_INDEX:++cpu} numpy
COPY README.md LICENSE ./
COPY agents agents
COPY api api
COPY console console
COPY control control
COPY health health
COPY ledger ledger
COPY local local
COPY migrations migrations
COPY muster muster
COPY scheduler scheduler
COPY simulator simulator
COPY watch watch
COPY workers workers
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=secret,id=pip,target=/etc/pip.conf \
    /opt/muster/venv/bin/pip install --constraint constraints.txt --build-constraint constraints.txt '.[agent,worker,s3]'

FROM python:3.11.14-slim-bookworm
LABEL org.opencontainers.image.title="muster-host" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 10001 muster && \
    useradd --uid 10001 --gid 10001 --no-create-home --home-dir /opt/muster --shell /usr/sbin/nologin muster && \
    install --directory --mode=0755 /opt/muster && \
    install --directory --owner=10001 --group=10001 --mode=0700 /var/lib/muster/host /run/muster/hosts && \
    install --directory --owner=10001 --group=10001 --mode=0755 /var/lib/muster/checkpoints /var/lib/muster/faults
COPY --from=build /opt/muster/venv /opt/muster/venv
COPY examples /opt/muster/examples
ENV PATH=/opt/muster/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /opt/muster
USER 10001:10001
ENTRYPOINT ["muster"]
CMD ["--help"]
