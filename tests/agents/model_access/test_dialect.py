"""The request that a server is sent, with or without what it may do without."""

from __future__ import annotations

from dataclasses import replace

import pytest

from om_proxy.agents.model_access.dialect import (
    EVERY_ADDITION,
    IMAGE_NOT_SHOWN,
    LIMIT_NAMES,
    list_additions,
    write_body,
)
from om_proxy.agents.model_access.llm import Image, Prompt
from om_proxy.wire.apis.additions import Addition
from tests.support.weighing import measure_peak_bytes

PROMPT = Prompt("be exact", ("look", Image("data:image/png;base64,AA"), "and say"), 0.3, 1_000)
TEXT = Prompt("be exact", ("one", "two"), 0.3, 1_000)


def test_body() -> None:
    """Text and images are content parts, text alone is one string; a setting is written only if it
    is set."""
    assert write_body("m", PROMPT) == {
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
    bare = write_body("m", Prompt("s", ("one", "two")))
    assert bare["messages"][1]["content"] == "one\n\ntwo"
    assert set(bare) == {"model", "messages"}


@pytest.mark.parametrize(
    ("base", "is_openai"),
    [
        ("https://api.openai.com/v1", True),
        ("http://127.0.0.1:8000/v1", False),
        ("https://api.openai.com.example/v1", False),
    ],
)
def test_names_of_the_limit(base: str, is_openai: bool) -> None:
    """OpenAI takes the new name for every model, other servers the old one; the other name is the
    second choice."""
    usual, other = LIMIT_NAMES[is_openai], LIMIT_NAMES[not is_openai]
    assert write_body("m", TEXT, base_url=base)[usual] == 1_000
    renamed = write_body("m", TEXT, ~Addition.LIMIT_NAME, base_url=base)
    assert renamed[other] == 1_000
    assert usual not in renamed


def test_additions() -> None:
    """Only what is sent can be taken back."""
    bare = Addition.SYSTEM | Addition.UNSTREAMED
    set_ = Addition.LIMIT | Addition.LIMIT_NAME | Addition.TEMPERATURE
    assert list_additions(Prompt("s", ("u",))) == bare
    assert list_additions(TEXT) == bare | set_
    assert list_additions(PROMPT) == bare | set_ | Addition.PICTURES


def test_options() -> None:
    """An effort is taken back where it is refused; what the operator adds is not, and it comes last."""
    prompt = replace(
        TEXT, reasoning_effort="low", extra_body={"provider": {"zdr": True}, "seed": 1}
    )
    body = write_body("m", prompt)
    assert (body["reasoning_effort"], body["provider"], body["seed"]) == ("low", {"zdr": True}, 1)
    assert Addition.OPTIONS in list_additions(prompt)
    assert Addition.OPTIONS not in list_additions(TEXT)
    bare = write_body("m", prompt, Addition(0))
    assert "reasoning_effort" not in bare
    assert bare["provider"] == {"zdr": True}


def test_without_additions() -> None:
    """What is left out is not in the body; without images, their placeholders stay in the text, and
    without a system message its text."""
    left_out = Addition.LIMIT | Addition.TEMPERATURE | Addition.PICTURES
    body = write_body("m", PROMPT, EVERY_ADDITION & ~left_out)
    assert set(body) == {"model", "messages"}
    assert body["messages"][1]["content"] == "look\n\nand say"
    body = write_body("m", PROMPT, Addition(0))
    (message,) = body["messages"]
    assert body["stream"] is True
    assert message == {"role": "user", "content": "be exact\n\nlook\n\nand say"}


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
    content = write_body("m", prompt, sends_addresses=False)["messages"][1]["content"]
    as_it_came = write_body("m", prompt)["messages"][1]["content"]
    assert as_it_came[1] == {"type": "image_url", "image_url": {"url": url}}
    assert content == (as_it_came if shown else f"Image #1:\n\n{IMAGE_NOT_SHOWN}\n\nand say")


@pytest.mark.parametrize("parameter", [";a", ";base64"])
def test_an_image_with_parameters_without_end(parameter: str) -> None:
    """Matching many parameters takes no memory. With backtracking it took a hundred bytes a
    character."""
    image = Image("data:image/png" + parameter * 100_000)
    assert measure_peak_bytes(
        lambda: write_body("m", Prompt("s", (image,)), sends_addresses=False)
    ) < len(image.url)
