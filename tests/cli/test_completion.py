"""A shell completes commands, options and names."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from om_proxy.cli import main
from om_proxy.memory.model import Key
from tests.cli.command_line import clean_environment
from tests.cli.stored_memory import CONFIG, store_thread

# what bash does at a TAB behind "$1"
PRESS_TAB = """
eval "$2"
COMP_LINE="$1" COMP_POINT=${#1} COMP_TYPE=9
read -ra COMP_WORDS <<< "$1"
[[ "$1" == *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_python_argcomplete om-proxy "${COMP_WORDS[$COMP_CWORD]}" "${COMP_WORDS[$((COMP_CWORD - 1))]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@cache
def print_completion(shell: str) -> str:
    """Return what `om-proxy --completion` prints, which a shell evaluates at its start."""
    command = [sys.executable, "-m", "om_proxy", "--completion", shell]
    return subprocess.run(
        command, env=clean_environment(), capture_output=True, text=True, timeout=60, check=True
    ).stdout


def press_tab(line: str, folder: Path) -> list[str]:
    """Return what bash offers at the end of this line."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    scripts = str(Path(sys.executable).parent)
    environment = clean_environment()
    environment |= {"PATH": f"{scripts}:{environment['PATH']}", "OM_PROXY_CONFIG": "om.yaml"}
    done = subprocess.run(
        [bash, "-c", PRESS_TAB, "bash", line, print_completion("bash")],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    return sorted(offer.strip() for offer in done.stdout.splitlines() if offer.strip())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("completion")
    for thread in ("kitchen", "kitsch 100% 対話", "attic", "kit\x1b[2J"):
        asyncio.run(store_thread(folder, Key("acme", "ana", thread)))
    asyncio.run(store_thread(folder, Key("globex", "zoe", "van"), title="kit car"))
    return folder


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("om-proxy th", ["threads"]),
        ("om-proxy threads ki", ["kitchen", "kitsch\\ 100%\\ 対話"]),
        ("om-proxy threads --tenant globex ", ["van"]),
        ("om-proxy notes show --resource ", ["ana", "zoe"]),
        ("om-proxy threads --tenant ", ["acme", "globex"]),
        ("om-proxy threads --if", []),
        ("om-proxy notes undo --if", ["--if-version"]),
        ("om-proxy --completion ", ["bash", "fish", "zsh"]),
        ("om-proxy notes un", ["undo", "unpin"]),
        ("om-proxy api POST /threads/kitc", ["/threads/kitchen/"]),
        (
            "om-proxy api POST /threads/kitchen/p",
            ["/threads/kitchen/park", "/threads/kitchen/pins"],
        ),
    ],
)
def test_bash_offers(folder: Path, line: str, offered: list[str]) -> None:
    """Names that begin so, as bash would quote them; a name that a terminal would obey is not
    offered, nor one that only has a title that begins so."""
    assert press_tab(line, folder) == offered


def test_without_a_store_no_name_is_offered(tmp_path: Path) -> None:
    """Nothing is printed into the command line, and nothing is created."""
    (tmp_path / "om.yaml").write_text(CONFIG)
    assert press_tab("om-proxy threads ", tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == ["om.yaml"]


@pytest.mark.parametrize(
    ("shell", "command"),
    [
        ("bash", "complete -o nospace"),
        ("zsh", "compdef _python_argcomplete om-proxy"),
        ("fish", "complete --command om-proxy"),
    ],
)
def test_each_shell_has_its_script(
    shell: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--completion", shell]) == 0
    assert command in capsys.readouterr().out
