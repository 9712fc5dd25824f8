"""Send requests to the model servers unchanged, and return their responses as raw bytes."""

from om_proxy.wire.upstream.calls import Upstream, UpstreamResponse, join_url
from om_proxy.wire.upstream.transport import AiohttpTransport

__all__ = ["AiohttpTransport", "Upstream", "UpstreamResponse", "join_url"]
