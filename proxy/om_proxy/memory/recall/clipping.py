"""Find how much of a text fits into a number of tokens."""

from __future__ import annotations

from collections.abc import Callable

# more characters than this a token are not tried: an ordinary token has about four
MAX_CHARS_A_TOKEN = 8

CountTokens = Callable[[str], int]


def find_fitting_chars(text: str, max_tokens: int, count_tokens: CountTokens) -> int:
    """Return a number of characters, at most all, whose beginning of the text has at most
    `max_tokens`. `count_tokens` may count what the text becomes when it is written."""
    chars = min(len(text), max(max_tokens, 0) * MAX_CHARS_A_TOKEN)
    while chars and (size := count_tokens(text[:chars])) > max_tokens:
        # towards the goal by proportion, and always by a step that ends soon
        chars = min(chars - 1 - chars // 64, chars * max_tokens // size)
        chars = max(chars, 0)
    return chars


def move_to_word_end(text: str, chars: int, max_back: int = 24) -> int:
    """Return `chars`, or a little less where that does not cut a word in two."""
    if chars >= len(text) or not chars or text[chars].isspace() or text[chars - 1].isspace():
        return chars
    for end in range(chars - 1, max(chars - max_back, 0), -1):
        if text[end - 1].isspace():
            return end
    return chars
