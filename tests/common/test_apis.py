"""Which API a request belongs to."""

from __future__ import annotations

import pytest

from om_proxy.common.apis import ApiName, find_api

VERSION = (b"anthropic-version", b"2023-06-01")
OTHER = (b"accept", b"anthropic-version")


@pytest.mark.parametrize(
    ("path", "plain", "with_version"),
    [
        (b"/v1/chat/completions", "chat", "chat"),
        (b"/chat/completions", "chat", "chat"),
        (b"/v1/responses", "responses", "responses"),
        (b"/responses", "responses", "responses"),
        (b"/v1/responses/resp_1/input_items", "responses", "responses"),
        (b"/v1/conversations/conv_1", "responses", "responses"),
        (b"/v1/messages", "messages", "messages"),
        (b"/messages", "messages", "messages"),
        (b"/v1/messages/count_tokens", "messages", "messages"),
        (b"/messages/batches/b_1/results", "messages", "messages"),
        (b"/v1/models", "chat", "messages"),
        (b"/v1/files/file_1", "chat", "messages"),
        (b"/anthropic/v1/messages", "chat", "messages"),
        # a thread of the Assistants API, which is no API of ours
        (b"/v1/threads/t/messages", "chat", "messages"),
        (b"/v1/messages-of-mine", "chat", "messages"),
        (b"/v1/v1/messages", "chat", "messages"),
        (b"/v1/Messages", "chat", "messages"),
        (b"/v1/embeddings", "chat", "messages"),
        (b"/api/hello", "messages", "messages"),
        (b"/api/other", "chat", "messages"),
        (b"/v1", "chat", "messages"),
        (b"/", "chat", "messages"),
        (b"*", "chat", "messages"),
        (b"", "chat", "messages"),
    ],
)
def test_api(path: bytes, plain: ApiName, with_version: ApiName) -> None:
    """The path tells it; where several APIs have the route, the header of Anthropic's SDKs does."""
    assert find_api(path, []) == find_api(path, [OTHER]) == plain
    assert find_api(path, [OTHER, VERSION]) == with_version
