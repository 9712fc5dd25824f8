"""`om-proxy store index`: fill, check, rebuild or drop the index of original messages."""

from __future__ import annotations

import argparse

from om_proxy.agents.embedding import EmbeddingModels
from om_proxy.agents.model_access.litellm_adapter import LiteLLM
from om_proxy.cli.answers import print_json, render_count, show_progress
from om_proxy.cli.exit_status import DONE, NOT_WORKING
from om_proxy.cli.store_command import print_error, run_with_store
from om_proxy.common.errors import ModelError
from om_proxy.engine.background.embedding import embed_all
from om_proxy.engine.background.indexing import index_all
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.engine.message_vectors import MessageVectors
from om_proxy.engine.policy import PolicyInForce
from om_proxy.observability.facts import Facts
from om_proxy.observability.ledger_writer import LedgerWriter
from om_proxy.settings.config import Settings, WatchedSettings
from om_proxy.storage.base import Store
from om_proxy.storage.contract.passage_index import IndexCheck, PassageIndex
from om_proxy.storage.shared.newest_passages import NEWEST_MESSAGES


def run(options: argparse.Namespace) -> int:
    return run_with_store(options, work_on_index)


async def work_on_index(options: argparse.Namespace, settings: Settings, store: Store) -> int:
    if not (await store.describe()).has_index:
        print_error(
            f"this store keeps no index: a search reads the newest {NEWEST_MESSAGES} messages"
        )
        return DONE
    if options.check:
        return await check(store, options)
    if options.drop:
        return await drop(settings, store)
    if options.rebuild:
        await store.outdate_index()
    return await fill(settings, store)


async def check(store: PassageIndex, options: argparse.Namespace) -> int:
    """Print what is wrong with the index."""
    with show_progress("comparing the index with the messages"):
        result = await store.check_index()
    print_json(result) if options.json else print_check(result)
    if result.faults:
        print_error("om-proxy store index --rebuild makes it anew")
    return NOT_WORKING if result.faults else DONE


def print_check(result: IndexCheck) -> None:
    for fault in result.faults:
        print(fault)
    print(
        f"index: {render_count(result.threads, 'thread')} with "
        f"{render_count(result.passages, 'passage')} and {render_count(result.vectors, 'vector')}, "
        f"{render_count(len(result.faults), 'fault')}"
    )


async def drop(settings: Settings, store: PassageIndex) -> int:
    with show_progress("removing the index"):
        await store.drop_index()
    print("the index is dropped")
    if settings.may_index:
        print_error("memory.retrieval or storage.search is on: a server indexes again")
    return DONE


async def fill(settings: Settings, store: Store) -> int:
    with show_progress("indexing messages"):
        threads, messages = await index_all(store, settings)
    print(f"indexed: {render_count(threads, 'thread')} with {render_count(messages, 'message')}")
    if not settings.may_index:
        print_error("nothing is to be indexed: memory.retrieval or storage.search is off")
    return await make_vectors(settings, store) if settings.embedding_models else DONE


async def make_vectors(settings: Settings, store: Store) -> int:
    """Make the vectors that are lacking."""
    litellm, facts, ledger_writer = LiteLLM(), Facts(), LedgerWriter(store)
    ledger_writer.subscribe_to(facts)
    models = EmbeddingModels(litellm)
    memories = Memories(store, PolicyInForce(WatchedSettings(settings)))
    try:
        with show_progress("making vectors"):
            count = await embed_all(memories, MessageVectors(store, models, facts), settings)
    except ModelError as exc:
        print_error(f"the embedding model gives no vectors: {exc}")
        return NOT_WORKING
    finally:
        await ledger_writer.close()
        models.close()
        litellm.close()
    print(f"made: {render_count(count, 'vector')}")
    return DONE
