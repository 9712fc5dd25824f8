"""The parameters that a server takes, learnt from its refusals."""

from __future__ import annotations

import pytest

from om_proxy.agents.dialect import IMAGE_NOT_SHOWN, NEW_LIMIT_NAME, OLD_LIMIT_NAME, Dialect
from om_proxy.agents.llm import Image, Prompt
from tests.support.weighing import measure_peak_bytes

PROMPT = Prompt("be exact", ("look", Image("data:image/png;base64,AA"), "and say"), 0.3, 1_000)
TEXT = Prompt("be exact", ("one", "two"), 0.3, 1_000)

# What servers really say; the wording is theirs.
RENAME = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
EXTRA = '[{"type":"extra_forbidden","loc":["body","max_completion_tokens"],"msg":"Extra inputs are not permitted"}]'
TOO_LARGE = "max_tokens is too large: 100000. This model supports at most 16384 completion tokens"
IN_COMPLETION = "context length is 8192 tokens. However, you requested 101000 tokens (1000 in the messages, 100000 in the completion)"
TEMPERATURE = "Unsupported value: 'temperature' does not support 0.3 with this model. Only the default (1) value is supported."
NO_IMAGES = "No endpoints found that support image input"


def test_body() -> None:
    """Text and images are content parts, text alone is one string; a setting is written only if it
    is set."""
    assert Dialect().write_body("m", PROMPT) == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "be exact"},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "look"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
                    {"type": "text", "text": "and say"},
                ],
            },
        ],
        "temperature": 0.3,
        "max_tokens": 1_000,
    }
    bare = Dialect().write_body("m", Prompt("s", ("one", "two")))
    assert bare["messages"][1]["content"] == "one\n\ntwo"
    assert set(bare) == {"model", "messages"}


@pytest.mark.parametrize(
    ("base", "name"),
    [
        ("https://api.openai.com/v1", NEW_LIMIT_NAME),
        ("http://127.0.0.1:8000/v1", OLD_LIMIT_NAME),
        ("https://api.openai.com.example/v1", OLD_LIMIT_NAME),
    ],
)
def test_first_name_of_the_limit(base: str, name: str) -> None:
    """OpenAI takes the new name for every model, other servers the old one."""
    assert Dialect.of(base).limit_name == name


@pytest.mark.parametrize(
    ("error_text", "prompt", "adapted"),
    [
        (RENAME, TEXT, Dialect(limit_name=NEW_LIMIT_NAME, is_limit_renamed=True)),
        (TOO_LARGE, TEXT, Dialect(limit_name=None)),
        (IN_COMPLETION, TEXT, Dialect(limit_name=None)),
        (TEMPERATURE, TEXT, Dialect(temperature=False)),
        (NO_IMAGES, PROMPT, Dialect(images=False)),
        (NO_IMAGES, TEXT, None),
        (TEMPERATURE, Prompt("s", ("u",)), None),
        (RENAME, Prompt("s", ("u",)), None),
        ("The model `m` does not exist", PROMPT, None),
    ],
)
def test_adapted_to(error_text: str, prompt: Prompt, adapted: Dialect | None) -> None:
    """Only a parameter that was sent and is named in the refusal changes."""
    assert Dialect().adapted_to(prompt, error_text) == adapted


def test_renamed_back() -> None:
    """A server that knows only the old name gets it."""
    assert Dialect(limit_name=NEW_LIMIT_NAME).adapted_to(TEXT, EXTRA) == Dialect(
        limit_name=OLD_LIMIT_NAME, is_limit_renamed=True
    )


def test_nothing_is_adapted_twice() -> None:
    """A limit that is refused under both names is left out; what is left out cannot be refused
    again."""
    dialect = Dialect(limit_name=NEW_LIMIT_NAME, is_limit_renamed=True).adapted_to(TEXT, RENAME)
    assert dialect == Dialect(limit_name=None, is_limit_renamed=True)
    assert dialect.adapted_to(TEXT, RENAME) is None
    assert Dialect(temperature=False).adapted_to(TEXT, TEMPERATURE) is None
    assert Dialect(images=False).adapted_to(PROMPT, NO_IMAGES) is None


def test_adapted_bodies() -> None:
    """A left-out parameter is not in the body; without images, their placeholders stay in the
    text."""
    body = Dialect(limit_name=None, temperature=False, images=False).write_body("m", PROMPT)
    assert set(body) == {"model", "messages"}
    assert body["messages"][1]["content"] == "look\n\nand say"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("data:image/png;base64,AA==", True),
        ("data:image/svg+xml;charset=utf-8;base64,AA_-", True),
        ("https://host.example/x.png", False),
        ("HTTP://host.example/x.png", False),
        ("//host.example/x.png", False),
        ("gs://bucket/x.png", False),
        ("file:///etc/passwd", False),
        ("data:image/png;base64;base64,AA", True),
        ("data:image/png;base64=1;base64,AA", True),
        ("data:image/png;;base64,AA", False),
        ("data:image/png;base64", False),
        ("data:image/png,AA", False),
        ("data:image/png,https://host.example/x;base64,", False),
        ("data:image/png;base64,https://host.example/x.png", False),
        ("data:image/png;url=http://host.example/;base64,AA", False),
        (" data:image/png;base64,AA", False),
        ("data:application/pdf;base64,AA", False),
        ("", False),
    ],
)
def test_images_by_their_addresses(url: str, shown: bool) -> None:
    """If addresses may not be sent, a note replaces each image that is not inline; otherwise it is
    sent as it came."""
    prompt = Prompt("s", ("Image #1:", Image(url), "and say"))
    content = Dialect(addresses=False).write_body("m", prompt)["messages"][1]["content"]
    as_it_came = Dialect().write_body("m", prompt)["messages"][1]["content"]
    assert as_it_came[1] == {"type": "image_url", "image_url": {"url": url}}
    assert content == (as_it_came if shown else f"Image #1:\n\n{IMAGE_NOT_SHOWN}\n\nand say")


@pytest.mark.parametrize("parameter", [";a", ";base64"])
def test_an_image_with_parameters_without_end(parameter: str) -> None:
    """Matching many parameters takes no memory. With backtracking it took a hundred bytes a
    character."""
    image = Image("data:image/png" + parameter * 100_000)
    assert measure_peak_bytes(
        lambda: Dialect(addresses=False).write_body("m", Prompt("s", (image,)))
    ) < len(image.url)
