"""What an installed user has: the wheel, built and unpacked as an installer does it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PARTS = ("proxy", "config", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of packages below a prefix of its own, with the wheel's files in it."""
    folder = tmp_path_factory.mktemp("wheel")
    source, prefix = folder / "source", folder / "prefix"
    source.mkdir()
    for name in PARTS:  # a copy, for building leaves files beside the sources
        part = ROOT / name
        if part.is_dir():
            shutil.copytree(part, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(part, source / name)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    install = [*pip, "install", "--no-deps", "--no-build-isolation", "--no-index", "--ignore-installed"]
    install += ["--prefix", prefix, source]
    done = subprocess.run(install, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return Path(sysconfig.get_path("purelib", vars={"base": str(prefix), "platbase": str(prefix)}))


def test_an_installed_user_gets_the_annotated_file(installed: Path, tmp_path: Path) -> None:
    """`om-proxy init` finds the file where the wheel put it, without a checkout."""
    code = (
        f"import sys; sys.path.insert(0, {str(installed)!r}); from om_proxy.cli import main; sys.exit(main(['init']))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    written = (tmp_path / "config" / "om-proxy.yaml").read_text(encoding="utf-8")
    assert written == (ROOT / "config" / "om-proxy.yaml").read_text(encoding="utf-8")


def test_prompts_and_migrations_are_in_the_wheel(installed: Path) -> None:
    """Every file of the package that is no Python is installed too."""
    wanted = {
        path.relative_to(ROOT / "proxy")
        for path in (ROOT / "proxy" / "om_proxy").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {path for path in wanted if not (installed / path).is_file()} == set()
