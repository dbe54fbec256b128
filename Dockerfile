# The service in a container; doc/install.md tells how it is run.

FROM python:3.11.14-slim-bookworm AS base

FROM base AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY api api
COPY rocketmq rocketmq
COPY spark_jobs spark_jobs
COPY store store
COPY timerwheel timerwheel
# `--build-arg 'EXTRAS=[kafka]'` installs what an extra needs.
ARG EXTRAS=""
# Without pip of its own: nothing can be installed into what runs.
# hadolint ignore=DL3013
RUN python -m venv --without-pip /opt/timerwheel && \
    pip --python /opt/timerwheel/bin/python install --no-cache-dir ".${EXTRAS}"

FROM base
LABEL org.opencontainers.image.title="timerwheel" \
      org.opencontainers.image.description="Keeps messages until they are due, then delivers them" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/timerwheel /opt/timerwheel
RUN install --directory --owner=8686 --group=8686 --mode=0700 /var/lib/timerwheel
# Of a container's own loopback nobody outside would hear. Beyond it the service wants tokens, or to be told
# TIMERWHEEL_OPEN_TO_ALL=yes.
ENV PATH=/opt/timerwheel/bin:$PATH \
    TIMERWHEEL_DATA=/var/lib/timerwheel \
    TIMERWHEEL_HOST=0.0.0.0
USER 8686:8686
VOLUME /var/lib/timerwheel
EXPOSE 8686
# Not /readyz: who restarts what is unhealthy would end a long recovery again and again.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import http.client, sys; \
service = http.client.HTTPConnection('127.0.0.1:8686', timeout=4); service.request('GET', '/healthz'); \
sys.exit(service.getresponse().status != 200)"]
ENTRYPOINT ["timerwheel"]
CMD ["serve"]
