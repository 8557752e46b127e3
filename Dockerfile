# docker build -t nodewire .                                      (torch from the default index)
# docker build -t nodewire --build-arg TORCH_INDEX=<url> .        (a CPU-only, CUDA or ROCm build of torch)
#
# The base is python:3.11-slim-bookworm, by digest; libraries are those of constraints.txt, by hash. torch is not: any build
# of it fits.
FROM python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b

ARG TORCH_INDEX=
WORKDIR /app
COPY constraints.txt ./
RUN pip install --no-cache-dir --no-deps --require-hashes -r constraints.txt
RUN pip install --no-cache-dir ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch==2.13.0

COPY pyproject.toml README.md LICENSE ./
COPY nodewire nodewire
COPY relay relay
COPY kinds kinds
COPY simnet simnet
RUN pip install --no-cache-dir --no-deps --no-build-isolation .

# State lives in /data; the process that meets strangers owns nothing else.
RUN useradd --create-home --uid 1000 nodewire && install -d -o nodewire -g nodewire /data /market
USER nodewire
WORKDIR /data
VOLUME /data
ENTRYPOINT ["nodewire"]
CMD ["--help"]
