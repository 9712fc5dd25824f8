"""Threads and receipts as the JSON values that the admin API answers with."""

from __future__ import annotations

import orjson

from om_proxy.memory.lifecycle.thresholds import Limits
from om_proxy.memory.model import Key, Memory, resource_key
from om_proxy.storage.base import ForgetResult, ThreadInfo
from om_proxy.telemetry.logs import thread_label


def describe_names(key: Key, secret: bytes) -> dict[str, object]:
    """Return the thread's names, its label in the log, and the label of the log that its
    resource's threads may share."""
    return {
        "tenant": key.tenant,
        "resource": key.resource,
        "thread": key.thread,
        "label": thread_label(secret, key),
        "resource_label": thread_label(secret, resource_key(key)),
    }


def build_forget_receipt(
    key: Key, forgotten: ForgetResult, now: float, secret: bytes
) -> dict[str, object]:
    """Count what was deleted with a thread, and say whether its bytes are gone too. Only the
    label names the thread."""
    return {
        "at": now,
        "scope": "thread",
        "label": thread_label(secret, key),
        "forgotten": {
            "threads": forgotten.threads,
            "messages": forgotten.messages,
            "observations": forgotten.observations,
            "generations": forgotten.generations,
            "reflections": forgotten.reflections,
        },
        "bytes": {
            "database": forgotten.database,
            "log": forgotten.log,
            "backups": "not_covered",
        },
    }


def describe_status(memory: Memory, limits: Limits, secret: bytes) -> dict[str, object]:
    return {
        **describe_names(memory.key, secret),
        "title": memory.title,
        "title_pinned": memory.title_pinned,
        "scope": memory.scope,
        "generation": memory.log.generation,
        "messages": {
            "count": memory.count,
            "pending_tokens": memory.pending_tokens,
            "threshold": limits.observe_from_tokens,
        },
        "observations": {
            "count": len(memory.log.entries),
            "tokens": memory.log.tokens,
            "threshold": limits.reflect_from_tokens,
            "reflections": sum(o.kind == "reflection" for o in memory.log.entries),
        },
        "chunks": [{"tokens": o.tokens, "source_tokens": o.source_tokens} for o in memory.chunks],
        "settings": orjson.loads(memory.overrides) if memory.overrides else {},
        "failures": memory.failures.count,
        "parked": memory.failures.suspended,
    }


def describe_thread(info: ThreadInfo, secret: bytes) -> dict[str, object]:
    return {
        **describe_names(info.key, secret),
        "title": info.title,
        "created_at": info.created_at,
        "turn_at": info.turn_at,
        "messages": info.messages,
        "generation": info.generation,
        "failures": info.failures,
        "parked": info.parked,
    }
