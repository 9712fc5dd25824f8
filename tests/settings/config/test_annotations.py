"""What the annotated configuration file says of each setting."""

from __future__ import annotations

from pathlib import Path

import pytest

from om_proxy.settings.config import list_settings, parse
from om_proxy.settings.config.annotations import find_annotated_file, find_words, list_words

ROOT = Path(__file__).parents[3]
FILE_TEXT = """
# Of the file, and of no setting.

server:
  # The port.
  # 0 takes a free one.
  port: 8400

  # A remark alone.

  host: here
  # Who may read.
  reads: [a, b]
upstream:
  # Its name.
  - name: openai
    # Its address.
    base_url: "http://127.0.0.1: 8"
    nested:
      # Deep.
      key: {a: 1}
  - name: another
# After the list.
auth: {}
"""


def test_the_comment_above_a_key_is_its_words() -> None:
    assert list_words(FILE_TEXT) == {
        "server": "",
        "server.port": "The port. 0 takes a free one.",
        "server.host": "",
        "server.reads": "Who may read.",
        "upstream": "",
        "upstream.name": "Its name.",
        "upstream.base_url": "Its address.",
        "upstream.nested": "",
        "upstream.nested.key": "Deep.",
        "auth": "After the list.",
    }


@pytest.mark.parametrize("text", ["", "\n\n", "# a\n", "- 1\n- 2\n", "a: |\n  # b\n"])
def test_a_file_without_words(text: str) -> None:
    assert not any(list_words(text).values())


def test_every_setting_in_force_has_words() -> None:
    settings = parse((ROOT / "config" / "om-proxy.yaml").read_text(encoding="utf-8"))
    lines = list_settings(settings, None, None)
    assert [line.name for line in lines if not find_words(line.name)] == []
    assert find_words("upstream[1].match") == find_words("upstream[0].match")
    assert find_words("no.such") is None


def test_the_file_is_found_in_a_checkout() -> None:
    assert find_annotated_file() == ROOT / "config" / "om-proxy.yaml"
