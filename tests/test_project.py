"""The frame around the code: locks, scripts, image and documents keep what they promise."""

import os
import re
import shutil
import site
import subprocess
import tomllib
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
import yaml

from om_proxy import __version__
from om_proxy.settings.config import parse

ROOT = Path(__file__).parents[1]
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
RUNTIME_LOCK = (ROOT / "requirements.runtime.lock").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SCRIPTS = [*sorted((ROOT / "scripts").iterdir()), ROOT / ".ci" / "run"]
STEALER = ("1.82.7", "1.82.8")  # litellm releases that carried a credential stealer


def locked(text: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Package → what it is pinned to (with its marker), and its hashes."""
    entries = re.findall(r"^(\S+?)==(.+?) \\\n((?:    --hash=\S+(?: \\)?\n)+)", text, flags=re.M)
    return {
        name: (pin, frozenset(re.findall(r"--hash=(sha256:[0-9a-f]{64})", hashes)))
        for name, pin, hashes in entries
    }


@pytest.mark.parametrize("text", [LOCK, RUNTIME_LOCK], ids=["all", "runtime"])
def test_lock_pins_and_hashes_everything(text: str) -> None:
    """Every requirement is one version with at least one hash; nothing else stands in the lock."""
    entries = locked(text)
    assert len(entries) > 50
    assert all(hashes for _, hashes in entries.values())
    requirements = [line for line in text.splitlines() if line and not line.startswith((" ", "#"))]
    assert len(requirements) == len(entries)


@pytest.mark.parametrize("text", [LOCK, RUNTIME_LOCK], ids=["all", "runtime"])
def test_lock_names_no_index(text: str) -> None:
    """Where packages come from is the installing machine's affair."""
    assert not re.search(r"https?://|--(extra-)?index-url|--find-links|--trusted-host| @ ", text)


def test_runtime_lock_is_part_of_the_lock() -> None:
    """What is served was tested: same versions, same hashes."""
    everything = locked(LOCK)
    for name, (pin, hashes) in locked(RUNTIME_LOCK).items():
        assert everything[name][0].split(" ;")[0] == pin.split(" ;")[0]
        assert hashes <= everything[name][1]
    assert "pytest" not in locked(RUNTIME_LOCK)


def test_locks_hold_every_dependency() -> None:
    """A dependency added to pyproject.toml stands in the locks too."""

    def names(requirements: list[str]) -> set[str]:
        return {
            re.split(r"[^A-Za-z0-9_.-]", requirement)[0].lower().replace("_", "-")
            for requirement in requirements
        }

    assert names(PROJECT["project"]["dependencies"]) <= set(locked(RUNTIME_LOCK))
    assert names(PROJECT["project"]["optional-dependencies"]["dev"]) <= set(locked(LOCK))


def test_stolen_releases_are_excluded() -> None:
    """The two releases are neither locked nor allowed."""
    (requirement,) = [r for r in PROJECT["project"]["dependencies"] if r.startswith("litellm")]
    assert all(f"!={version}" in requirement for version in STEALER)
    assert locked(LOCK)["litellm"][0] not in STEALER


KNOWN_PTH = re.compile(
    r"distutils-precedence\.pth"  # setuptools
    # this project, installed editable
    r"|__editable__\.observational_memory_proxy-.*\.pth|_?observational_memory_proxy\.pth"
    # virtualenv's and coverage's own, where a developer uses them
    r"|_virtualenv\.pth|a1_coverage\.pth"
)


def pth_files() -> Iterator[str]:
    for folder in site.getsitepackages():
        yield from (file.name for file in Path(folder).glob("*.pth"))
    for distribution in distributions():
        yield from (
            file.name
            for file in distribution.files or ()
            if file.suffix == ".pth" and len(file.parts) == 1
        )


def test_nothing_runs_at_every_start_of_python() -> None:
    """A `.pth` file runs code whenever Python starts (it is how the stolen releases did it): only
    known ones are installed."""
    assert [name for name in pth_files() if not KNOWN_PTH.fullmatch(name)] == []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_script(script: Path) -> None:
    """Each script can be run, is bash that stops at errors, and finds the repository itself."""
    text = script.read_text(encoding="utf-8")
    assert os.access(script, os.X_OK)
    assert text.startswith("#!/usr/bin/env bash\n")
    assert re.search(r"^set -e?uo pipefail$", text, flags=re.M)
    assert 'cd "$(dirname "${BASH_SOURCE[0]}")/.."' in text
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0


def test_documents_and_ci_run_the_same() -> None:
    """What CONTRIBUTING says to run is what CI runs."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "`scripts/check` and `scripts/test` are what CI runs" in page
    assert re.search(r"^scripts/check\b", ci, flags=re.M)
    assert re.search(r"^scripts/test\b", ci, flags=re.M)


def test_the_workflow_runs_the_scripts() -> None:
    """It calls what anyone can call, on the Pythons that the metadata name; the image has the
    newest of them."""
    workflow = yaml.safe_load(
        (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    )
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    commands = [step["run"] for step in steps if "run" in step]
    scripts = [command for command in commands if not command.startswith("git config ")]
    assert scripts == [".ci/run", "scripts/pythons"]
    (pythons,) = [step["with"]["python-version"].split() for step in steps if "with" in step]
    classifier = "Programming Language :: Python :: 3."
    assert [classifier + version.removeprefix("3.") for version in pythons] == [
        name for name in PROJECT["project"]["classifiers"] if name.startswith(classifier)
    ]
    assert f"\nARG PYTHON={pythons[-1]}\n" in (ROOT / "Dockerfile").read_text(encoding="utf-8")


def configurations_in_documents() -> list[str]:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    return [
        text
        for page in sorted(pages)
        for text in re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.S)
        if re.search(r"^(upstream|memory|auth):", text, flags=re.M)
    ]


@pytest.mark.parametrize("text", configurations_in_documents())
def test_configuration_in_document(text: str) -> None:
    """A configuration copied from a document is valid."""
    parse(text, env={name: f"a-key-of-{name}" for name in re.findall(r"\$\{(\w+)\}", text)})


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The scripts, in a tree whose tools only write down that they ran; `fail` in a tool's name's
    file makes it fail."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    tools = tmp_path / ".venv" / "bin"
    tools.mkdir(parents=True)
    for tool in ("ruff", "mypy", "lint-imports", "python", "om-proxy"):
        stand_in(tools / tool, tool)
    stand_in(tmp_path / "scripts" / "setup", "setup")
    stand_in(tmp_path / "scripts" / "image", "image")
    stand_in(tmp_path / "scripts" / "servers", "servers")
    say(tmp_path / "path" / "id", "0")
    say(tmp_path / "path" / "df", "Avail\\n9000")
    for tool in ("apt-get", "buildah", "mmdebstrap"):
        say(tmp_path / "path" / tool, "")
    for lock in ("requirements.lock", ".venv/installed.lock"):
        (tmp_path / lock).write_text("x==1\n")
    return tmp_path


def stand_in(path: Path, name: str, status: int = 0) -> None:
    path.write_text(f'#!/usr/bin/env bash\necho "{name} $*" >> "${{RAN:?}}"\nexit {status}\n')
    path.chmod(0o755)


def say(path: Path, text: str, status: int = 0) -> None:
    """A tool of the system's that prints a text."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'#!/usr/bin/env bash\nprintf "{text}\\n"\nexit {status}\n')
    path.chmod(0o755)


def ran(tree: Path, script: str, *arguments: str, cwd: Path | None = None) -> tuple[int, list[str]]:
    """Exit status, and the tools that ran, in order."""
    record = tree / "ran"
    record.write_text("")
    env = {"PATH": f"{tree / 'path'}:{os.environ['PATH']}", "RAN": str(record)}
    env["HOME"] = str(tree)
    done = subprocess.run(
        [tree / script, *arguments], env=env, cwd=cwd or tree, capture_output=True, check=False
    )
    return done.returncode, [line.strip() for line in record.read_text().splitlines()]


CHECKS = ["ruff format --check .", "ruff check .", "mypy", "lint-imports"]


def test_check_runs_all(tree: Path) -> None:
    """All four checks run, from wherever it is called."""
    assert ran(tree, "scripts/check", cwd=Path("/")) == (0, CHECKS)


@pytest.mark.parametrize("tool", ["ruff", "mypy", "lint-imports"])
def test_check_is_honest(tree: Path, tool: str) -> None:
    """One failing check fails the whole, and hides none of the others."""
    stand_in(tree / ".venv" / "bin" / tool, tool, status=1)
    assert ran(tree, "scripts/check") == (1, CHECKS)


def test_arguments_reach_the_tools(tree: Path) -> None:
    """pytest and the demo get what the script was given."""
    assert ran(tree, "scripts/test", "-k", "a b") == (0, ["python -m pytest -k a b"])
    assert ran(tree, "scripts/demo", "--show-prompt") == (0, ["om-proxy demo --show-prompt"])


def test_the_fast_tests(tree: Path) -> None:
    """`scripts/test fast` runs on all cores what starts no process of its own; more arguments
    narrow it down."""
    status, (command,) = ran(tree, "scripts/test", "fast", "-k", "a")
    assert (status, command.split()[:4]) == (0, ["python", "-m", "pytest", "-n"])
    assert "-m not slow" in command
    named = [word for word in command.split() if word.startswith("tests/")]
    assert {"tests/memory", "tests/settings", "tests/wire/apis"} <= set(named)
    assert [name for name in named if not (ROOT / name).exists()] == []
    assert "tests/e2e" not in command
    assert command.endswith(" -k a")


@pytest.mark.parametrize(("status", "ends_with"), [(0, 0), (1, 1)], ids=["pass", "fail"])
def test_pythons_names_what_it_did_not_test(tree: Path, status: int, ends_with: int) -> None:
    """The fast tests run on each Python that is named and works here. One that is only a shim, or
    is not there, is named loudly; a failing one does not hide the next."""
    named = "".join(
        f'"Programming Language :: Python :: {version}",\n'
        for version in ("3", "3.90", "3.91", "3.92")
    )
    (tree / "pyproject.toml").write_text(named)
    (tree / ".venv" / "installed.lock").unlink()  # which is not asked
    for version, works in (("3.90", 0), ("3.91", 127), ("3.92", 0)):
        say(tree / "path" / f"python{version}", "", works)
        shutil.copytree(tree / ".venv" / "bin", tree / f".venv-{version}" / "bin")
        shutil.copy(tree / "requirements.lock", tree / f".venv-{version}" / "installed.lock")
        stand_in(tree / f".venv-{version}" / "bin" / "python", version, status)
    env = {"PATH": f"{tree / 'path'}:{os.environ['PATH']}", "RAN": str(tree / "ran")}
    done = subprocess.run(
        [tree / "scripts/pythons"],
        env=env | {"HOME": str(tree)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == ends_with, done.stderr
    assert done.stderr.endswith("NOT TESTED, FOR THIS MACHINE HAS NO PYTHON 3.91\n")
    commands = (tree / "ran").read_text().splitlines()
    assert [command.split()[0] for command in commands] == ["3.90", "3.92"]
    assert all("tests/memory" in command for command in commands)


@pytest.mark.parametrize("script", ["scripts/test", "scripts/check", "scripts/demo"])
@pytest.mark.parametrize("stale", ["missing", "old"])
def test_setup_runs_where_the_environment_is_not_the_locks(
    tree: Path, script: str, stale: str
) -> None:
    """A missing or older environment is brought up to date before anything else."""
    installed = tree / ".venv" / "installed.lock"
    if stale == "missing":
        installed.unlink()
    else:
        installed.write_text("x==0\n")
    assert ran(tree, script)[1][0] == "setup"


@pytest.mark.parametrize("tool", ["python", "mypy", "setup", "image", "servers"])
def test_ci_is_honest(tree: Path, tool: str) -> None:
    """Failing tests, checks, set-up, image or servers fail CI. The servers are ended."""
    status, commands = ran(tree, ".ci/run")
    assert status == 0
    assert commands[0].strip() == "servers up"
    assert [command.strip() for command in commands[-2:]] == ["image", "servers down"]
    if tool == "setup":
        (tree / ".venv" / "installed.lock").unlink()
        stand_in(tree / "scripts" / "setup", "setup", status=1)
    elif tool in ("image", "servers"):
        stand_in(tree / "scripts" / tool, tool, status=1)
    else:
        stand_in(tree / ".venv" / "bin" / tool, tool, status=1)
    assert ran(tree, ".ci/run")[0] == 1


def test_a_release_needs_its_heading(tree: Path) -> None:
    """A version of which the changelog says nothing is not built."""
    package = tree / "proxy" / "om_proxy"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('__version__ = "9.1.0"\n')
    (tree / "CHANGELOG.md").write_text("## Unreleased\n\n## 9.1\n")
    done = subprocess.run([tree / "scripts/release"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        1,
        "release: CHANGELOG.md has no heading '## 9.1.0'\n",
    )
    assert not (tree / "dist").exists()


def test_the_version_stands_in_one_place() -> None:
    """Wheel, command and release read it from the package, and the changelog has its heading."""
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "om_proxy.__version__"}
    assert "version" not in PROJECT["project"]
    headings = re.findall(
        r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.M
    )
    assert __version__ in headings


@pytest.mark.parametrize(
    ("tool", "text", "status", "why"),
    [
        ("id", "1000", 0, "root on Debian"),
        ("df", "Avail\\n2000", 0, "2000 are free"),
        ("apt-get", "", 100, "could not install"),
    ],
)
def test_ci_says_why_it_builds_no_image(
    tree: Path, tool: str, text: str, status: int, why: str
) -> None:
    """A machine that cannot build the image passes CI, loudly."""
    say(tree / "path" / tool, text, status)
    if tool == "apt-get":
        (tree / "path" / "buildah").unlink()
        if shutil.which("buildah"):
            pytest.skip("buildah is installed on this machine")
    env = {
        "PATH": f"{tree / 'path'}:{os.environ['PATH']}",
        "RAN": str(tree / "ran"),
        "HOME": str(tree),
    }
    done = subprocess.run(
        [tree / ".ci/run"], env=env, cwd=tree, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert "THE IMAGE IS NOT BUILT" in done.stderr
    assert why in done.stderr
    assert "image" not in (tree / "ran").read_text().split()


def test_setup_without_python_says_what_to_do(tmp_path: Path) -> None:
    """On a machine without a fitting Python, one clear message and a failure; nothing half made."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "bin").mkdir()
    shutil.copy(ROOT / "scripts" / "setup", tmp_path / "scripts" / "setup")
    for tool in ("bash", "dirname", "rm"):
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool) or "")
    done = subprocess.run(
        ["bash", tmp_path / "scripts" / "setup"],
        env={"PATH": str(tmp_path / "bin")},
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == 1
    assert "needs Python 3.11 or newer" in done.stderr
    assert "PYTHON=" in done.stderr
    assert not (tmp_path / ".venv").exists()


@pytest.mark.parametrize(
    ("uv", "installers"),
    [(None, ["pip", "pip"]), (0, ["uv", "uv"]), (1, ["uv", "pip", "uv", "pip"])],
    ids=["no uv", "uv", "uv fails"],
)
def test_setup_takes_uv_where_it_is(tree: Path, uv: int | None, installers: list[str]) -> None:
    """uv installs where it is there, pip where it is not or fails; both insist on the hashes; each
    phase is one line."""
    shutil.copy(ROOT / "scripts" / "setup", tree / "scripts" / "setup")
    tools = tree / "bin"
    tools.mkdir()
    if uv is not None:
        stand_in(tools / "uv", "uv", uv)
    env = {"PATH": f"{tools}:/usr/bin:/bin", "RAN": str(tree / "ran")}
    done = subprocess.run(
        [tree / "scripts/setup"], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert (tree / ".venv" / "installed.lock").read_text() == "x==1\n"
    installs = [line for line in (tree / "ran").read_text().splitlines() if " install " in line]
    assert ["uv" if line.startswith("uv ") else "pip" for line in installs] == installers
    assert "--require-hashes -r requirements.lock" in installs[0]
    assert [line.split()[:2] for line in done.stderr.splitlines()] == [
        ["setup:", "installing"],
        ["setup:", "installing"],
        ["setup:", "done"],
    ]


def test_setup_makes_an_environment_of_the_old_name_anew(tree: Path) -> None:
    """The distribution was named om-proxy once. An environment that holds it is made anew, for two
    would stand in it."""
    shutil.copy(ROOT / "scripts" / "setup", tree / "scripts" / "setup")
    python = tree / "python"
    python.write_text(
        "#!/usr/bin/env bash\n"
        'echo "$*" >> "${RAN:?}"\n'
        'if [ "$1 $2" = "-m venv" ]; then mkdir -p .venv/bin && cp "$0" .venv/bin/python; fi\n'
    )
    python.chmod(0o755)
    old = tree / ".venv" / "lib" / "python3.11" / "site-packages" / "om_proxy-0.1.0.dist-info"
    old.mkdir(parents=True)
    env = {"PATH": "/usr/bin:/bin", "RAN": str(tree / "ran"), "PYTHON": str(python)}
    done = subprocess.run(
        [tree / "scripts/setup"], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not old.exists()
    assert "setup: making .venv with" in done.stderr
    assert "-m venv .venv" in (tree / "ran").read_text().splitlines()


def test_image_has_few_rights() -> None:
    """The image runs as a user without rights, from hash-locked wheels, and writes to /data
    only."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    last = text.rpartition("\nFROM ")[2]
    assert "USER 10001:10001" in last
    assert text.count("--require-hashes -r") == 2
    assert "OM_PROXY__STORAGE__URL=sqlite:////data/om-proxy.db" in last
    assert 'CMD ["om-proxy", "serve"]' in last
    assert "/healthz" in last
    assert "'*.pth'" in text


def test_image_copies_what_is_let_through() -> None:
    """.dockerignore keeps everything out but what the Dockerfile copies from the tree."""
    copied = re.findall(
        r"^COPY (?!--from)(.+) \S+$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), flags=re.M
    )
    ignore = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert {f"!{name}" for names in copied for name in names.split()} == {
        line for line in ignore if line.startswith("!")
    }
    assert "*" in ignore


def test_composed_service_has_few_rights() -> None:
    """The example takes every right away that the proxy does not need; without an admin token the
    container makes one."""
    compose: Any = yaml.safe_load((ROOT / "examples" / "compose.yaml").read_text(encoding="utf-8"))
    service = compose["services"]["om-proxy"]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "om-data:/data" in service["volumes"]
    assert "om-data" in compose["volumes"]
    assert service["ports"] == ["127.0.0.1:8400:8400"]
    assert service["environment"]["OM_PROXY_ADMIN_TOKEN"] == "${OM_PROXY_ADMIN_TOKEN:-}"
    assert "OM_PROXY_ADMIN_TOKEN_FILE=/data/" in (ROOT / "Dockerfile").read_text(encoding="utf-8")


def test_no_place_of_one_machine() -> None:
    """No file names a path or a package index of the machine it was written on."""
    elsewhere = re.compile(
        "|".join(
            [
                r"/wor" + "k/(main|shared)",
                "/root" + "/",
                "python" + r"hosted\.org",
                "PIP_" + "INDEX_URL",
            ]
        )
    )
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
        text=True,
    )
    if names.returncode:
        pytest.skip("not a git repository: which files belong to it is unknown")
    found = []
    for name in names.stdout.splitlines():
        file = ROOT / name
        if file.is_file() and elsewhere.search(file.read_text(encoding="utf-8", errors="replace")):
            found.append(name)
    assert found == []


def test_every_folder_of_tests_is_a_package() -> None:
    """Each test has a full name, so that two may share a file's name. What client programs run
    stands alone, in `programs`."""
    folders = {
        file.parent for file in (ROOT / "tests").rglob("*.py") if file.parent.name != "programs"
    }
    assert len(folders) > 20
    assert [folder for folder in sorted(folders) if not (folder / "__init__.py").is_file()] == []
