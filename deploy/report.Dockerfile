# The nightly report as an image: Java and Spark, which the hub's own image is spared. From the top
# of the checkout:
#   docker build -f deploy/report.Dockerfile -t edgehub-report:local .
# docs/howto/container.md says how it is run, and how a release pins the base.

ARG BASE=python:3.11-slim-bookworm

FROM ${BASE}
# Java asks for the name of its user, and Spark will not start for one without.
RUN useradd --uid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin edgehub
WORKDIR /src
COPY pyproject.toml deploy/build.lock deploy/report.lock deploy/sbom.py README.md LICENSE ./
COPY edgehub edgehub
COPY analytics analytics
# Packages are those of requirements.lock, by version and hash, as far as the report needs them; Java
# is one of them. Not --only-binary: Spark is published as a source package, though nothing of it is
# compiled; what builds it is locked too.
RUN python3 -m venv /opt/edgehub \
 && /opt/edgehub/bin/pip install --no-cache-dir --require-hashes -r build.lock \
 && /opt/edgehub/bin/pip install --no-cache-dir --require-hashes --no-build-isolation --use-pep517 -r report.lock \
 && /opt/edgehub/bin/pip install --no-cache-dir --no-deps --no-build-isolation . \
 && /opt/edgehub/bin/python sbom.py edgehub-report > /opt/edgehub/sbom.cdx.json \
 && rm -rf /src/*
ENV PATH=/opt/edgehub/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONDONTWRITEBYTECODE=1
WORKDIR /tmp
USER 10001:10001
ENTRYPOINT ["edgehub", "report"]
