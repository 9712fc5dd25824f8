"""Parts that several answers of the admin API share."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from om_proxy.memory.model import Key, resource_key
from om_proxy.settings.identity.keyed_hashes import label_thread

UnixSeconds = Annotated[float, Meta(description="Unix seconds.")]


class ThreadNames(Struct, frozen=True, kw_only=True):
    """The names of a thread, and the labels by which the log names it."""

    tenant: str
    resource: str
    thread: str
    label: Annotated[str, Meta(description="The thread's name in the log.")]
    resource_label: Annotated[
        str, Meta(description="The name in the log of the log that the resource's threads share.")
    ]


def describe_names(key: Key, secret: bytes) -> dict[str, str]:
    """Return the fields of `ThreadNames`."""
    return {
        "tenant": key.tenant,
        "resource": key.resource,
        "thread": key.thread,
        "label": label_thread(secret, key),
        "resource_label": label_thread(secret, resource_key(key)),
    }


def repair_text(text: str | None) -> str | None:
    """Return the text as UTF-8 can hold it: JSON of a client may carry half a character."""
    return None if text is None else text.encode("utf-8", "replace").decode()
