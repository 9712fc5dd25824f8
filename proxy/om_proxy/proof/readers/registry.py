"""The programs whose histories can be read, and the way from a file to its reader.

A reader is a module of this folder with these functions:

    fits(head: Head) -> bool                                    # whether the program wrote this file
    read(path: Path, program: str) -> Iterator[Conversation]    # streamed; the file is only read
    list_places() -> list[Path]                                 # files of this user; optional
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType

from om_proxy.common.errors import NotFound
from om_proxy.proof.conversation import Conversation, HistoryError
from om_proxy.proof.readers.records import Head, read_head


@dataclass(frozen=True, slots=True)
class Reader:
    """A program, with the module that reads its files, imported when it is first used."""

    program: str
    module: str
    aliases: tuple[str, ...] = ()

    def fits(self, head: Head) -> bool:
        return bool(self._load().fits(head))

    def read(self, path: Path) -> Iterator[Conversation]:
        conversations: Iterator[Conversation] = self._load().read(path, self.program)
        return conversations

    def list_places(self) -> list[Path]:
        places: list[Path] = getattr(self._load(), "list_places", list)()
        return places

    def _load(self) -> ModuleType:
        return import_module(f"om_proxy.proof.readers.{self.module}")


READERS: tuple[Reader, ...] = (
    Reader("claude-code", "claude_code"),
    Reader("codex", "codex"),
    Reader("opencode", "opencode"),
    Reader("chatgpt", "chatgpt"),
    Reader("claude-ai", "claude_ai", ("claude",)),
    Reader("open-webui", "open_webui"),
    Reader("librechat", "librechat"),
    Reader("openai-log", "openai_log"),
    Reader("messages", "plain", ("openai-jsonl",)),
)


def read_history(path: str | Path, program: str | None = None) -> Iterator[Conversation]:
    """Yield the conversations of a file. Without `program`, its beginning says whose it is.

    Raises NotFound if there is no such file, and HistoryError if no program or more than one fits."""
    path = Path(path)
    if not path.exists():
        raise NotFound(f"there is no file {path}")
    reader = find_reader(program) if program else detect_reader(path)
    return reader.read(path)


def find_reader(name: str) -> Reader:
    for reader in READERS:
        if name in (reader.program, *reader.aliases):
            return reader
    raise HistoryError(f"no reader is named {name}; there are {list_names()}")


def detect_reader(path: Path) -> Reader:
    head = read_head(path)
    fitting = [reader for reader in READERS if reader.fits(head)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise HistoryError(f"{path}: fits {list_names(fitting)}; choose one of them with --from")
    raise HistoryError(
        f"{path}: not recognised; if you know what wrote it, name it with --from: {list_names()}"
    )


def list_names(readers: Sequence[Reader] = READERS) -> str:
    """Write the names that may follow --from, an alias beside its program."""
    return ", ".join(" = ".join((reader.program, *reader.aliases)) for reader in readers)
