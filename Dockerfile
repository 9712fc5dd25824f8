# om-proxy, from hash-locked wheels, as a user without rights, on a root that may be read-only: it writes to /data only.
#
#   docker build -t om-proxy .
#   docker run -p 127.0.0.1:8400:8400 -v om-data:/data om-proxy
#
# A configuration of your own: -v ./config:/app/config:ro. See examples/compose.yaml.

ARG PYTHON=3.13

FROM python:${PYTHON}-slim AS build
WORKDIR /src
COPY requirements.lock requirements.runtime.lock ./
# the tool that builds our own wheel comes hash-locked too
RUN awk '/^[^ #]/ {on = /^setuptools==/} on' requirements.lock > build.lock \
 && python -m venv /build \
 && /build/bin/pip install --no-cache-dir --require-hashes -r build.lock \
 && python -m venv --without-pip /opt/om-proxy \
 && /build/bin/pip --python /opt/om-proxy install --no-cache-dir --only-binary=:all: --require-hashes -r requirements.runtime.lock
# left out, because nothing here runs it (75 MB): the web pages of litellm's own gateway, its second implementation in Rust (taken with
# LITELLM_RUST only), the libraries' tests, and a downloader that huggingface-hub does without
RUN cd /opt/om-proxy/lib/python3*/site-packages \
 && rm -r litellm/proxy/_experimental/out litellm/proxy/swagger litellm/rust_bridge/_native*.so \
 && find . -depth -type d -name tests -exec rm -r {} + \
 && /build/bin/pip --python /opt/om-proxy uninstall --yes hf-xet
COPY pyproject.toml README.md LICENSE ./
COPY proxy proxy
COPY config config
RUN /build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels . \
 && /build/bin/pip --python /opt/om-proxy install --no-cache-dir --no-deps /wheels/*.whl \
 && pth="$(find /opt/om-proxy -name '*.pth')" \
 && if [ -n "$pth" ]; then echo "runs at every start of Python, and nobody asked for it: $pth" >&2; exit 1; fi

FROM python:${PYTHON}-slim
RUN groupadd --gid 10001 om && useradd --uid 10001 --gid 10001 --home-dir /data --no-create-home --shell /usr/sbin/nologin om \
 && install -d -o 10001 -g 10001 -m 0700 /data
COPY --from=build /opt/om-proxy /opt/om-proxy

# 0.0.0.0, because a container's loopback is reached by nobody; so an admin token there must be: it opens the admin API (/om/v1, as
# X-OM-Admin), by which whoever holds it sees the threads of all tenants. Without OM_PROXY_ADMIN_TOKEN the first start makes one.
# TMPDIR: litellm asks for a writable one when it is imported, and on a read-only root there is no other.
# MALLOC_*: keeps bodies of a megabyte off fresh pages; measured: half the time of a 1 MB request for 20 MB of memory.
ENV PATH=/opt/om-proxy/bin:$PATH \
    HOME=/data \
    TMPDIR=/data \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    LITELLM_LOCAL_MODEL_COST_MAP=True \
    OM_PROXY_ADMIN_TOKEN_FILE=/data/admin-token \
    OM_PROXY__SERVER__HOST=0.0.0.0 \
    OM_PROXY__STORAGE__URL=sqlite:////data/om-proxy.db \
    MALLOC_MMAP_THRESHOLD_=536870912 \
    MALLOC_TRIM_THRESHOLD_=536870912 \
    MALLOC_TOP_PAD_=67108864

WORKDIR /app
USER 10001:10001
VOLUME ["/data"]
EXPOSE 8400
# straight to loopback, whatever http_proxy says
HEALTHCHECK --interval=15s --timeout=3s --start-period=10s --retries=3 CMD ["python", "-c", "import os, urllib.request as r; r.build_opener(r.ProxyHandler({})).open(f\"http://127.0.0.1:{os.environ.get('OM_PROXY__SERVER__PORT', 8400)}/healthz\", timeout=2)"]
CMD ["om-proxy", "serve"]
