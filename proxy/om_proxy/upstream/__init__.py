"""The road to the model servers: a request goes out as it is, its answer comes back as raw bytes."""

from om_proxy.upstream.address import join
from om_proxy.upstream.calls import Answer, Upstream
from om_proxy.upstream.transport import AiohttpTransport

__all__ = ["AiohttpTransport", "Answer", "Upstream", "join"]
