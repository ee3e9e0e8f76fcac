# nartk-serve in an image: the engine and no torch, for models of text and speech. In the checkout:
#
#   docker build --file scripts/serve.Dockerfile --tag nartk-serve .
#   docker run --publish 8000:8000 nartk-serve                                     # corrects English
#   docker run --publish 8000:8000 --volume "$PWD/models:/models:ro" nartk-serve en-pt=/models/enpt
#
# Keys of clients are a file: --volume "$PWD/keys.txt:/keys.txt:ro", and after the image's name
# --api-key-file /keys.txt.
FROM python:3.12-bookworm AS build
WORKDIR /nartk
COPY pyproject.toml setup.py MANIFEST.in README.md LICENSE ./
COPY models models
COPY decoders decoders
COPY data data
COPY nartk nartk
ENV NARTK_REQUIRE_ENGINE=1
RUN pip wheel --no-cache-dir --wheel-dir /wheels '.[serve,audio]'

FROM python:3.12-slim-bookworm
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-deps /wheels/*.whl \
    && useradd --system --uid 10001 --no-create-home nartk
USER 10001
EXPOSE 8000
HEALTHCHECK --start-period=30s --interval=30s --timeout=5s \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health/ready', timeout=4)"]
ENTRYPOINT ["nartk-serve", "--host", "0.0.0.0"]
