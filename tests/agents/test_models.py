"""Facts about models, known without asking them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.agents import models
from om_proxy.agents.models import Price, TokenCounter, encodings, price_list
from om_proxy.agents.models.price_list import find_litellm_file
from om_proxy.memory import tokens
from om_proxy.memory.model import MESSAGE_FRAMING_TOKENS
from om_proxy.wire.apis.chat.chat_message import view_parsed


@pytest.fixture
def clear_caches() -> Iterator[None]:
    """Clear the caches of ranks, before the test and after it."""

    def forget() -> None:
        encodings._encodings.clear()
        encodings._find_ranks_folder.cache_clear()
        find_litellm_file.cache_clear()

    forget()
    yield
    forget()


# ── encodings ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("gpt-4o", "o200k_base"),
        ("openai/gpt-5-mini", "o200k_base"),
        ("gpt-4-0613", "cl100k_base"),
        ("openrouter/openai/gpt-3.5-turbo", "cl100k_base"),
        ("gpt-oss-120b", "o200k_base"),
        ("claude-sonnet-4-5", "o200k_base"),
        ("gpt-9", "o200k_base"),
        ("text-davinci-003", "o200k_base"),
        ("", "o200k_base"),
    ],
)
def test_encoding_of_a_model(model: str, name: str) -> None:
    """The model's own name determines its encoding; an unknown model has o200k_base."""
    assert models.find_encoding_name(model) == name


def test_counts() -> None:
    """The two encodings give known counts, without a network."""
    text = "The upload limit is 40 MB, enforced before parsing."
    assert models.create_encoder("gpt-4o")(text) == 12
    assert models.create_encoder("gpt-4")("こんにちは世界") == 4
    assert models.create_encoder("gpt-4o")("") == 0


def test_special_tokens_are_text() -> None:
    """A user's text is never a control token, and never an error."""
    assert models.create_encoder("gpt-4o")("<|endoftext|>") > 1


def test_texts_that_break_the_tokenizer() -> None:
    """A million blanks make the library panic, and a lone surrogate has no UTF-8. Both are
    counted."""
    assert 5_000 < models.create_encoder("gpt-4o")(" " * 1_000_000) < 1_000_000
    assert models.create_encoder("gpt-4o")("a\ud800b") > 1


@given(st.text(max_size=200))
def test_any_text(text: str) -> None:
    """A text has at most as many tokens as UTF-8 bytes; only an empty text has none."""
    size = models.create_encoder("")(text)
    assert bool(text) <= size <= len(text.encode("utf-8", "surrogatepass"))


async def test_count() -> None:
    """A long text, counted off the event loop, gives the same count."""
    line = "one more line of the log\n"
    long = line * (2 * encodings.OFF_LOOP_CHARS // len(line))
    assert await models.count_tokens("gpt-4o", long) == models.create_encoder("gpt-4o")(long)
    assert await models.count_tokens("gpt-4o", line) == 7


def test_ranks_are_held_once(clear_caches: None) -> None:
    """The ranks are not also held as Python objects, and the encoder still works, for new texts
    too."""
    encoding = encodings._load_encoding("o200k_base")
    assert encoding is not None
    assert encoding._mergeable_ranks == {}
    assert encoding.encode_ordinary("tiktoken is great!") == [83, 8251, 2488, 382, 2212, 0]
    assert encoding.decode([83, 8251, 2488, 382, 2212, 0]) == "tiktoken is great!"


def test_own_folder_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clear_caches: None
) -> None:
    """The user's TIKTOKEN_CACHE_DIR is used if its ranks are complete, and stays unchanged."""
    shipped = find_litellm_file("litellm_core_utils/tokenizers")
    assert shipped is not None
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    assert encodings._find_ranks_folder("cl100k_base") == shipped
    encodings._find_ranks_folder.cache_clear()
    shutil.copy(shipped / "9b5ad71b2ce5302211f9c61530b329a4922fc6a4", tmp_path)
    assert encodings._find_ranks_folder("cl100k_base") == tmp_path
    assert os.environ["TIKTOKEN_CACHE_DIR"] == str(tmp_path)


def test_damaged_ranks_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clear_caches: None
) -> None:
    """A damaged file is neither used nor deleted, and nothing is downloaded."""
    damaged = tmp_path / "fb374d419588a4632f3f557e76b4b70aebbca790"
    damaged.write_bytes(b"half a file")
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    assert encodings._find_ranks_folder("o200k_base") != tmp_path
    assert damaged.read_bytes() == b"half a file"


def test_no_ranks_at_all(monkeypatch: pytest.MonkeyPatch, clear_caches: None) -> None:
    """Without ranks, tokens are estimated. The count says so, and the log says it once."""
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR", raising=False)
    monkeypatch.setattr(encodings, "find_litellm_file", lambda _name: None)
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            assert models.create_encoder("gpt-4o")("four by four by") == tokens.estimate_tokens(
                "four by four by"
            )
    assert models.find_encoding_name("gpt-4o") == "estimate"
    assert [line["event"] for line in logs] == ["tokens.estimated"]


def test_without_memory_there_is_no_tokenizer() -> None:
    """A process's start does not import tiktoken."""
    code = "import sys, om_proxy.agents.models as c; c.TokenCounter(); c.create_encoder('gpt-4o'); sys.exit('tiktoken' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_loading_is_late() -> None:
    """Importing, naming an encoding and creating an encoder load neither ranks nor table: an idle
    server stays small."""
    code = (
        "import sys, om_proxy.agents.models as c; from om_proxy.agents.models import encodings, price_list;"
        "c.create_encoder('gpt-4o'); c.find_encoding_name('gpt-4o'); c.TokenCounter();"
        "sys.exit(bool(encodings._encodings) or price_list._read_table.cache_info().currsize)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


async def test_loading_leaves_the_event_loop_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks and tiktoken are loaded off the event loop; once they are loaded, nothing waits."""
    monkeypatch.setattr(encodings, "_encodings", {})
    name, threads = encodings._choose_encoding, list[threading.Thread]()

    def naming(model: str) -> str:
        threads.append(threading.current_thread())
        return name(model)

    monkeypatch.setattr(encodings, "_choose_encoding", naming)
    await TokenCounter().warm_up()
    assert threads
    assert threading.main_thread() not in threads
    assert encodings.is_loaded("gpt-4o")


# ── counting messages ─────────────────────────────────────────────────────────────────────────────


async def test_messages() -> None:
    """Payload tokens come under the given keys; instructions count with their framing."""
    counter = TokenCounter()
    raw = b'{"role":"user","content":"The upload limit is 40 MB."}'
    encode = models.create_encoder("gpt-4o")
    expected = tokens.count(
        view_parsed({"role": "user", "content": "The upload limit is 40 MB."}), encode, "gpt-4o"
    )
    assert await counter.count({7: raw, 9: raw}, "gpt-4o", "chat") == {7: expected, 9: expected}
    for _ in range(2):
        assert await counter.count_instructions((raw, raw), "gpt-4o", "chat") == 2 * (
            expected + MESSAGE_FRAMING_TOKENS
        )
    assert await counter.count({}, "gpt-4o", "chat") == {}
    assert await counter.count_instructions((), "gpt-4o", "chat") == 0
    assert counter.tokens("The upload limit") == encode("The upload limit")


async def test_long_messages() -> None:
    """Long messages, counted off the event loop, give the same counts."""
    text = "word " * encodings.OFF_LOOP_CHARS
    raw = b'{"role":"user","content":"%s"}' % text.encode()
    counted = await TokenCounter().count({1: raw}, "gpt-4o", "chat")
    assert counted == {
        1: tokens.count(
            view_parsed({"role": "user", "content": text}),
            models.create_encoder("gpt-4o"),
            "gpt-4o",
        )
    }


@pytest.mark.parametrize(
    "raw", [b"{", b"[1]", b'{"content":"\xff"}', b'{"role":"user","content":' + b"[" * 5_000]
)
async def test_unreadable_messages(raw: bytes) -> None:
    """An unreadable message counts as its text."""
    assert (await TokenCounter().count({1: raw}, "gpt-4o", "chat"))[1] > 0


async def test_parts_that_are_read_and_not_written() -> None:
    """A message with nearly too many brackets can be read but not written again; it is still
    counted."""
    for depth in range(800, 1_000):
        raw = b'{"role":"user","content":[{"type":"x","x":' + b"[" * depth + b"]" * depth + b"}]}"
        assert (await TokenCounter().count({1: raw}, "gpt-4o", "chat"))[1] > 0


# ── prices and limits ─────────────────────────────────────────────────────────────────────────────


def test_prices() -> None:
    """A list price has the provider's discount for cached input, and its surcharge for writing the
    cache."""
    price = models.find_price("claude-sonnet-4-5")
    assert price is not None
    assert price.input < price.output
    assert price.cached_input < price.input < price.cache_write
    openai = models.find_price("gpt-4o")
    assert openai is not None
    assert openai.cached_input < openai.input == openai.cache_write


@pytest.mark.parametrize(
    "model", ["openai/gpt-4o", "openrouter/openai/gpt-4o", "some-gateway/gpt-4o"]
)
def test_names_with_providers(model: str) -> None:
    """The whole name is looked up first, then the name without one provider after the other."""
    assert isinstance(models.find_price(model), Price)


@pytest.mark.parametrize(
    ("model", "base_url", "listed"),
    [
        ("mistral-large-latest", "https://api.mistral.ai/v1", "mistral/mistral-large-latest"),
        ("kimi-k2.5", "https://api.moonshot.ai/v1", "moonshot/kimi-k2.5"),
        ("glm-4.6", "https://api.z.ai/api/paas/v4", "zai/glm-4.6"),
        ("qwen-max", "https://dashscope.aliyuncs.com/compatible-mode/v1", "dashscope/qwen-max"),
        ("openai/gpt-oss-120b", "https://api.groq.com/openai/v1", "groq/openai/gpt-oss-120b"),
        ("mistral-large-latest", "http://127.0.0.1:4000/v1", "mistral/mistral-large-latest"),
        ("z-ai/glm-4.6", "https://openrouter.ai/api/v1", "zai/glm-4.6"),
        ("claude-3-haiku-20240307", None, "vertex_ai/claude-3-haiku"),
        ("gpt-4o", "https://api.mistral.ai/v1", "gpt-4o"),
    ],
)
def test_names_that_are_listed_with_a_provider_alone(
    model: str, base_url: str | None, listed: str
) -> None:
    """The server's own listing comes first, then the plain name, then the maker's listing."""
    assert models.find_price(model, base_url) == models.find_price(listed) is not None


def test_a_price_in_tiers() -> None:
    """The tier of short prompts counts."""
    price = models.find_price("qwen3-max")
    assert price is not None
    assert (price.input, price.output) == (1.2e-6, 6e-6)


@pytest.mark.parametrize("model", ["", "nobody/knows-this", "sample"])
def test_unknown_models(model: str) -> None:
    """An unknown model has no price and no limit."""
    assert models.find_price(model) is None
    assert models.find_abilities(model) == models.Abilities()


def test_the_table_s_own_explanation_is_no_model() -> None:
    """The table's first entry explains the fields, and is no model."""
    assert models.find_abilities("sample_spec").max_input is None


@pytest.mark.parametrize(
    ("model", "images", "temperature"),
    [
        ("gpt-4o", True, True),
        ("gpt-3.5-turbo", False, True),
        ("o3", True, False),
        ("openai/o4-mini", True, False),
        ("gpt-5-mini", True, False),
        ("gpt-5-chat-latest", True, True),
        ("gemini/gemini-2.5-flash", True, True),
        ("gpt-5-of-tomorrow", None, False),
    ],
)
def test_limits(model: str, images: bool | None, temperature: bool | None) -> None:
    """A model's abilities: window and answer in tokens, images, and whether it takes a
    temperature."""
    abilities = models.find_abilities(model)
    assert (abilities.takes_images, abilities.takes_temperature) == (images, temperature)
    if images is not None:
        assert abilities.max_input
        assert abilities.max_output


@pytest.mark.parametrize(
    ("model", "thinks"),
    [
        ("gpt-4o", False),
        ("gpt-5-mini", True),
        ("gpt-5-of-tomorrow", True),
        ("gemini/gemini-3.5-flash-lite", True),
        # it thinks only where it is asked to
        ("claude-haiku-4-5", False),
        ("nobody/knows-this", None),
    ],
)
def test_models_that_think(model: str, thinks: bool | None) -> None:
    """An effort limits how long a model thinks that would think anyway."""
    assert models.find_abilities(model).thinks is thinks


def test_a_table_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without litellm's files nothing is known, and nothing fails."""
    monkeypatch.setattr("om_proxy.agents.models.price_list.find_litellm_file", lambda _name: None)
    price_list._read_table.cache_clear()
    price_list._find_entry.cache_clear()
    assert models.find_price("gpt-4o") is None
    assert models.find_abilities("gpt-4o").max_input is None
    price_list._read_table.cache_clear()
    price_list._find_entry.cache_clear()


# ── habits ────────────────────────────────────────────────────────────────────────────────────────

SEPTEMBER = date(2026, 9, 1)  # more than 60 days before the models of OpenAI end


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("gpt-4o-mini", []),
        ("gpt-5-mini", []),
        ("unknown/model", []),
        ("gpt-4o", ["expensive"]),
        ("anthropic/claude-haiku-4-5", []),
        ("gemini/gemini-2.5-flash", ["ends it"]),
    ],
)
def test_warnings(model: str, words: list[str]) -> None:
    """Only models that end, or are too expensive for background work, give warnings."""
    warnings = models.list_model_warnings(model, today=SEPTEMBER)
    assert len(warnings) == len(words)
    assert all(word in text for word, text in zip(words, warnings, strict=True))


def test_a_reflector_s_window() -> None:
    """A reflector's window must hold its prompt, the log and an answer."""
    fits, (warning,) = (
        models.list_model_warnings("gpt-4o-mini", reflect_from_tokens=tokens, today=SEPTEMBER)
        for tokens in (40_000, 100_000)
    )
    assert fits == ()
    assert "128000" in warning
    assert "observation_tokens" in warning
