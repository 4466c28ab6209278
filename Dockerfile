# `tidegate serve` in a container. docs/testing-applications.md describes it; tests/e2e/test_container.py runs its steps.
FROM python:3.13-slim AS build
WORKDIR /build
COPY pyproject.toml README.md LICENSE ./
COPY constraints constraints
COPY src src
RUN python -m venv /opt/tidegate
RUN /opt/tidegate/bin/python -m pip install --require-hashes --requirement constraints/build.txt
RUN python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" > requirements.txt
RUN /opt/tidegate/bin/python -m pip install --require-hashes --no-build-isolation --constraint constraints/python.txt --requirement requirements.txt
RUN /opt/tidegate/bin/python -m pip install --no-deps --no-build-isolation .
RUN /opt/tidegate/bin/python -m pip uninstall --yes pip setuptools wheel

FROM python:3.13-slim
COPY --from=build /opt/tidegate /opt/tidegate
COPY container/server.properties container/healthcheck.py /etc/tidegate/
RUN install -d -m 0700 -o 10001 -g 10001 /var/lib/tidegate
ENV PATH=/opt/tidegate/bin:$PATH PYTHONUNBUFFERED=1
USER 10001:10001
VOLUME /var/lib/tidegate
EXPOSE 9092
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --start-interval=500ms --retries=3 CMD ["python", "/etc/tidegate/healthcheck.py"]
ENTRYPOINT ["tidegate", "serve", "--config", "/etc/tidegate/server.properties"]
