"""A memory model behind a folder: each call is a file with the prompt, and its answer is a file
that somebody else writes.

A call is known by the digest of its prompt, so a second run over the same recording finds the
answers of the first. A prompt that is asked again within one run (after an answer that could not be
used) is another call.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from tests.bench.notes.calls import Text

LOOK_EVERY_S = 0.2
_NAME = re.compile(r"(?:(?P<before>[a-z]+)-)?(?P<number>\d{4,})(?:-(?P<after>[a-z]+))?\.prompt\.md")
_DIGEST = re.compile(r"^<!-- call \S+, digest (\S+) -->$", re.MULTILINE)

README = """\
# A memory model is asked here

Each `NAME.prompt.md` is one call of a language model: a system prompt and a user message. Whoever plays the model, a person or a
program, reads it and writes the model's answer, and nothing else, to `NAME.answer.md` in this folder.

- Write the answer under another name first (`NAME.answer.md.part`), then rename it: half an answer would be read as a whole one.
- Answer each prompt by itself, as a model would: from the prompt alone, without looking at other files or ahead in the recording.
- The run waits for each answer. If it gives up or is stopped, run the same command again: it finds all answers that are there.
- To have a call answered anew, remove its answer.
- `0001-observer`, `0002-reflector`: notes to write, in the format that the prompt asks for. `judge-0001`: facts to judge.
"""


class AnswerMissing(Exception):
    """Nobody answered in time."""


class Folder:
    """`ask` returns the answer to a prompt, as soon as there is one. `tell` is told of each prompt
    that waits."""

    def __init__(
        self,
        path: Path,
        *,
        timeout_s: float,
        answer_with: Callable[[Sequence[Text]], Awaitable[str]] | None = None,
        tell: Callable[[str], object] = print,
    ) -> None:
        """`answer_with`: answers prompts that no file answers yet; its answers are kept as files
        too. None: somebody writes files."""
        path.mkdir(parents=True, exist_ok=True)
        (path / "README.md").write_text(README, encoding="utf-8")
        self.path = path
        self._timeout_s = timeout_s
        self._answer_with = answer_with
        self._tell = tell
        self._names = dict(_read_names(path))
        self._answered: Counter[str] = Counter()  # by prompt, in this run

    async def ask(self, kind: str, prompt: Sequence[Text]) -> str:
        """Raises AnswerMissing after the timeout; the prompt's file stays for the next run."""
        digest = digest_prompt(kind, prompt)
        call = f"{digest}-{self._answered[digest] + 1}"
        name = self._names.get(call) or self._write_prompt(kind, call, prompt)
        answer = self.path / f"{name}.answer.md"
        text = read_answer(answer)
        if text is None and self._answer_with:
            text = await self._answer_with(prompt)
            write_whole(answer, text)
        if text is None:
            text = await self._wait_for(answer)
        self._answered[digest] += 1
        return text

    def _write_prompt(self, kind: str, call: str, prompt: Sequence[Text]) -> str:
        number = 1 + sum(_is_judge(name) == (kind == "judge") for name in self._names.values())
        name = f"judge-{number:04}" if kind == "judge" else f"{number:04}-{kind}"
        write_whole(self.path / f"{name}.prompt.md", render_prompt(name, call, prompt))
        self._names[call] = name
        return name

    async def _wait_for(self, answer: Path) -> str:
        self._tell(f"waiting for {answer}")
        end = time.monotonic() + self._timeout_s
        while (text := read_answer(answer)) is None:
            if time.monotonic() > end:
                raise AnswerMissing(
                    f"no {answer} within {self._timeout_s:g} s; write it, then run the same command again"
                )
            await asyncio.sleep(LOOK_EVERY_S)
        return text


def digest_prompt(kind: str, prompt: Sequence[Text]) -> str:
    parts = (kind, *(part for message in prompt for part in message))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def render_prompt(name: str, call: str, prompt: Sequence[Text]) -> str:
    """The prompt's file: who answers where, then each message under its role."""
    messages = "\n\n".join(f"===== {role} =====\n\n{text}" for role, text in prompt)
    return (
        f"<!-- call {name}, digest {call} -->\n"
        f"<!-- You are the language model that gets the messages below. Write your answer, and nothing else, to {name}.answer.md\n"
        f"     in this folder: under another name first, then rename it. -->\n\n{messages}\n"
    )


def read_answer(path: Path) -> str | None:
    """None while nobody has answered."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def write_whole(path: Path, text: str) -> None:
    """Nobody sees half of it."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)


def _is_judge(name: str) -> bool:
    return name.startswith("judge-")


def _read_names(path: Path) -> list[tuple[str, str]]:
    """Call → name of the prompts that an earlier run wrote."""
    found = []
    for file in sorted(path.glob("*.prompt.md")):
        if _NAME.fullmatch(file.name) and (
            match := _DIGEST.search(file.read_text(encoding="utf-8"))
        ):
            found.append((match.group(1), file.name.removesuffix(".prompt.md")))
    return found
