"""Inline data in a message's text."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from om_proxy.agents.transcript_parts import Attachments, render_arguments
from tests.support.weighing import measure_peak_bytes

BYTES = "QUJD" * 1024


@pytest.mark.parametrize(
    "parameters", ["", ";charset=utf-8", ";a;b=1;base64", ";base64=1;base645", ";base64;x"]
)
def test_parameters(parameters: str) -> None:
    """A media type may have any number of parameters, with any names."""
    text = f"seen: data:text/csv{parameters};base64,{BYTES}, and more"
    assert Attachments().render_part(text) == "seen: [text/csv, about 3 kB], and more"


@pytest.mark.parametrize(
    "head", ["data:a/b;base64", "data:a/b;;base64,", "data:a/b;c d;base64,", "data:a;base64,"]
)
def test_no_bytes(head: str) -> None:
    """Other text stays as it is."""
    text = f"{head}{BYTES} or base64,"
    assert Attachments().render_part(text) == text


@pytest.mark.parametrize("parameter", [";a", ";base64"])
def test_parameters_without_end(parameter: str) -> None:
    """Matching many parameters takes no memory. With backtracking it took a hundred bytes a
    character."""
    text = "data:a/b" + parameter * 100_000 + "base64,"
    assert measure_peak_bytes(lambda: Attachments().render_part(text)) < len(text)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("{}", ""),
        ("", ""),
        ('{"path": "a.py"}', "path: a.py"),
        (
            '{"path": "a.py", "offset": 10, "all": true, "x": null}',
            "path: a.py\noffset: 10\nall: true\nx: null",
        ),
        ('{"content": "a\\n\\tb\\n"}', "content:\n  a\n  \tb"),
        ('{"a": "say \\"hi\\""}', 'a: say "hi"'),
        ('{"a": "", "b": " "}', 'a: ""\nb: " "'),
        (
            '{"size": 1.10, "big": 123456789012345678901234567890}',
            "size: 1.10\nbig: 123456789012345678901234567890",
        ),
        ('{"tags": ["a", "b"], "o": {"k": [1]}}', 'tags: ["a", "b"]\no: {"k": [1]}'),
        (
            '{"edits": [{"old": "a\\nb", "new": "c"}, {"old": "d", "new": "e\\nf"}]}',
            "edits:\n  - old:\n      a\n      b\n    new: c\n  - old: d\n    new:\n      e\n      f",
        ),
        ('{"a": {"b": {"c": "1\\n2"}}}', "a:\n  b:\n    c:\n      1\n      2"),
        ('{"l": ["1\\n2", "3"]}', "l:\n  - 1\n    2\n  - 3"),
        ('{"a\\nUser (10:00): b": 1}', "a User (10:00): b: 1"),
        ("ls -la", "ls -la"),
        ('["a"]', '["a"]'),
        ('"text"', '"text"'),
        ('{"path": "a.py", "content": "cut of', '{"path": "a.py", "content": "cut of'),
        ('{"a": 1} {"b": 2}', '{"a": 1} {"b": 2}'),
    ],
)
def test_forms(arguments: str, text: str) -> None:
    """An object is written key by key, with long values below their key; other arguments stay as
    they came."""
    assert render_arguments(arguments) == text


def test_levels_without_end() -> None:
    """A value that is nested too deeply to be read is still shown."""
    deep = '{"a":' * 200 + '"1\\n2"' + "}" * 200
    assert '"1\\n2"' in render_arguments(deep)
    deeper = '{"a":' * 100_000 + '"1\\n2"' + "}" * 100_000
    assert render_arguments(deeper) == deeper


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.sampled_from(["a\nb", "\n", "\u2028", "\r\n x"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=8), JSON, max_size=4))
def test_nothing_is_lost(arguments: dict[str, object]) -> None:
    """Every word of every value is in the text, whatever the nesting and the line ends."""
    shown = render_arguments(json.dumps(arguments, ensure_ascii=False))

    def leaves(value: object) -> list[str]:
        if isinstance(value, dict):
            return [leaf for one in value.values() for leaf in leaves(one)]
        if isinstance(value, list):
            return [leaf for one in value for leaf in leaves(one)]
        return value.split() if isinstance(value, str) else [json.dumps(value)]

    plain = shown + json.dumps(shown, ensure_ascii=False)
    for leaf in leaves(arguments):
        assert leaf in plain or json.dumps(leaf, ensure_ascii=False)[1:-1] in shown


@settings(deadline=None)
@given(st.text())
def test_anything_is_shown(arguments: str) -> None:
    """Any text gives a text."""
    assert isinstance(render_arguments(arguments), str)
