# syntax=docker/dockerfile:1
# The command `halfmq`, small and without root: docs/run.md.
#   docker build -t halfmq .                                       a broker
#   docker build -t halfmq --build-arg EXTRAS=broker,rocketmq .    and with other extras of pyproject.toml
FROM node:22-slim AS assets

WORKDIR /src
COPY scripts/assets scripts/assets
RUN scripts/assets

FROM python:3.12-slim AS build

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY proto/gen/halfmq proto/gen/halfmq
COPY client_core client_core
COPY producer_sdk producer_sdk
COPY consumer_sdk consumer_sdk
COPY halfmq_connect halfmq_connect
COPY halfmq_pipeline halfmq_pipeline
COPY halfmq_cli halfmq_cli
COPY broker broker
COPY --from=assets /src/broker/console/assets/vendor broker/console/assets/vendor
RUN pip wheel --no-deps --wheel-dir /dist .

# Without pip: whoever gets into a container has no package manager there. Compiled here: nothing can be written later.
ARG EXTRAS=broker
RUN python -m venv --without-pip /opt/halfmq \
    && pip --python /opt/halfmq/bin/python install --compile "$(ls /dist/*.whl)[${EXTRAS}]"

FROM python:3.12-slim

ARG VERSION=unreleased
ARG REVISION=unknown
LABEL org.opencontainers.image.title="halfmq" \
      org.opencontainers.image.description="A transactional message broker on MySQL, MariaDB or SQLite" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

RUN groupadd --gid 10001 halfmq \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/halfmq --shell /usr/sbin/nologin halfmq \
    && install --directory --owner=halfmq --group=halfmq --mode=0750 /var/lib/halfmq
COPY --from=build /opt/halfmq /opt/halfmq

# A number, so that Kubernetes can tell that it is not root.
USER 10001:10001
WORKDIR /var/lib/halfmq
ENV PATH=/opt/halfmq/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HALFMQ_LISTEN=0.0.0.0:8085 \
    HALFMQ_LOG_FORMAT=json
EXPOSE 8085 9464
STOPSIGNAL SIGTERM
# Of the process alone: a restart would not bring a database back. With TLS, name one that has the options.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 CMD ["halfmq", "health"]
ENTRYPOINT ["halfmq"]
CMD ["serve"]
