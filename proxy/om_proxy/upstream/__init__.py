"""The way to the model servers: a request goes out unchanged, its response comes back as raw
bytes."""

from om_proxy.upstream.address import join_url
from om_proxy.upstream.calls import Upstream, UpstreamResponse
from om_proxy.upstream.transport import AiohttpTransport

__all__ = ["AiohttpTransport", "Upstream", "UpstreamResponse", "join_url"]
