"""What an installed user has: the wheel, installed in an environment of its own."""

from __future__ import annotations

import shutil
import site
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path

import pytest

from om_proxy import __version__
from tests.support.long_forms import long_form

ROOT = Path(__file__).parents[1]
PARTS = ("proxy", "config", "pyproject.toml", "README.md", "LICENSE")
COMMANDS = ("om-proxy", "observational-memory-proxy")
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
SECONDS_A_PROGRAM_MAY_TAKE = 300


def run_program(*command: str | Path, cwd: Path) -> str:
    """What the program prints. It sees no variable of ours that names another place of modules."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", "HOME": str(cwd)},
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS_A_PROGRAM_MAY_TAKE,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def copy_source(into: Path) -> Path:
    """A copy of what the wheel is built from, for building leaves files beside the sources."""
    into.mkdir()
    for name in PARTS:
        part = ROOT / name
        if part.is_dir():
            shutil.copytree(
                part, into / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
            )
        else:
            shutil.copy(part, into / name)
    return into


def build_wheel(source: Path, into: Path) -> Path:
    """The one wheel that `source`, a folder or an sdist, becomes. No index is asked."""
    run_program(
        *PIP,
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--wheel-dir",
        into,
        source,
        cwd=into.parent,
    )
    (wheel,) = into.glob("*.whl")
    return wheel


@dataclass(frozen=True)
class Environment:
    """A virtual environment that holds nothing but what a test installs, and reaches this one's
    packages after its own."""

    folder: Path

    @property
    def packages(self) -> Path:
        base = str(self.folder)
        return Path(sysconfig.get_path("purelib", "venv", vars={"base": base, "platbase": base}))

    def install(self, *wheels: Path) -> None:
        for wheel in wheels:
            python = self.folder / "bin" / "python"
            run_program(
                *PIP,
                "--python",
                python,
                "install",
                "--no-deps",
                "--no-index",
                "--force-reinstall",
                "--no-compile",  # of hundreds of modules that nothing here imports
                wheel,
                cwd=wheel.parent,
            )

    def run(self, command: str, *arguments: str, cwd: Path) -> str:
        return run_program(self.folder / "bin" / command, *arguments, cwd=cwd)


def make_environment(folder: Path) -> Environment:
    run_program(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    environment = Environment(folder)
    # plain paths: their own .pth files, and with them the editable install of this checkout, are
    # not read
    (environment.packages / "dependencies.pth").write_text(
        "\n".join(site.getsitepackages()), encoding="utf-8"
    )
    return environment


def make_colliding_wheel(folder: Path) -> Path:
    """A distribution, not ours, that installs a top-level package named `proxy`."""
    wheel = folder / "proxy_of_another-1.0-py3-none-any.whl"
    about = "proxy_of_another-1.0.dist-info"
    files = {
        "proxy/__init__.py": "OWNER = 'another'\n",
        "proxy/cli.py": "raise RuntimeError('this is the other distribution')\n",
        f"{about}/METADATA": "Metadata-Version: 2.1\nName: proxy-of-another\nVersion: 1.0\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{about}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{about}/RECORD"])
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    return build_wheel(copy_source(folder / "source"), folder / "dist")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with our wheel alone."""
    environment = make_environment(tmp_path_factory.mktemp("installed") / "env")
    environment.install(wheel)
    return environment


@pytest.fixture(scope="module")
def distribution(installed: Environment) -> Distribution:
    (found,) = distributions(path=[str(installed.packages)])
    return found


def test_an_installed_user_gets_the_annotated_file(installed: Environment, tmp_path: Path) -> None:
    """`om-proxy init` finds the file where the wheel put it, without a checkout."""
    installed.run("om-proxy", "init", cwd=tmp_path)
    written = (tmp_path / "config" / "om-proxy.yaml").read_text(encoding="utf-8")
    assert written == (ROOT / "config" / "om-proxy.yaml").read_text(encoding="utf-8")


def test_prompts_and_migrations_are_in_the_wheel(installed: Environment) -> None:
    """Every file of the package that is no Python is installed too."""
    wanted = {
        path.relative_to(ROOT / "proxy")
        for path in (ROOT / "proxy" / "om_proxy").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {path for path in wanted if not (installed.packages / path).is_file()} == set()


@pytest.mark.parametrize(
    "ours_first",
    [
        pytest.param(True, id="ours first", marks=long_form),
        pytest.param(False, id="the other first"),
    ],
)
def test_it_runs_beside_a_package_named_proxy(
    wheel: Path, tmp_path: Path, ours_first: bool
) -> None:
    """Another distribution installs a package named `proxy`. Neither overwrites the other,
    whichever comes second."""
    environment = make_environment(tmp_path / "env")
    other = make_colliding_wheel(tmp_path)
    environment.install(*([wheel, other] if ours_first else [other, wheel]))
    for command in COMMANDS:
        assert environment.run(command, "--version", cwd=tmp_path) == f"{__version__}\n"
    if ours_first:  # the other could have overwritten a file of ours
        assert "tokens" in environment.run("om-proxy", "demo", cwd=tmp_path)
    code = "import proxy, om_proxy; print(proxy.OWNER, om_proxy.__file__)"
    assert environment.run("python", "-c", code, cwd=tmp_path).split() == [
        "another",
        str(environment.packages / "om_proxy" / "__init__.py"),
    ]


def test_the_wheel_holds_one_package_and_the_annotated_file(wheel: Path) -> None:
    """No tests, no scripts, and no second top-level name that another distribution could have
    too."""
    with zipfile.ZipFile(wheel) as archive:
        names = [Path(name) for name in archive.namelist()]
    about = f"observational_memory_proxy-{__version__}"
    assert {name.parts[0] for name in names} == {"om_proxy", f"{about}.dist-info", f"{about}.data"}
    data = [name for name in names if name.parts[0] == f"{about}.data"]
    assert data == [Path(f"{about}.data/data/share/om-proxy/om-proxy.yaml")]


def test_the_sdist_becomes_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    """Who installs from the sdist gets every file, byte for byte, that the wheel has."""
    source = copy_source(tmp_path / "source")
    code = f"from setuptools import build_meta; build_meta.build_sdist({str(tmp_path)!r})"
    run_program(sys.executable, "-c", code, cwd=source)
    sdist = tmp_path / f"observational_memory_proxy-{__version__}.tar.gz"
    again = build_wheel(sdist, tmp_path / "dist")
    assert again.name == wheel.name
    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(again) as second:
        assert sorted(first.namelist()) == sorted(second.namelist())
        assert [name for name in first.namelist() if first.read(name) != second.read(name)] == []


def test_the_metadata_is_complete(distribution: Distribution) -> None:
    """What an index shows of us. There is no page of ours yet, so no address is named."""
    about = distribution.metadata
    assert (about["Name"], about["Version"]) == ("observational-memory-proxy", __version__)
    assert about["Author"] == "om-proxy contributors"
    assert about["License-Expression"] == "Apache-2.0"
    assert about.get_all("License-File") == ["LICENSE"]
    assert about["Requires-Python"] == ">=3.11"
    assert about["Summary"]
    assert {"llm", "memory", "openai", "proxy"} <= set(about["Keywords"].split(","))
    assert about["Description"] == (ROOT / "README.md").read_text(encoding="utf-8")
    assert [name for name in ("Project-URL", "Home-page", "Download-URL") if name in about] == []


def test_the_classifiers_name_what_is_tested(distribution: Distribution) -> None:
    """Each Python from 3.11 to 3.13, and no licence: its expression says it, and an index refuses
    both."""
    classifiers = distribution.metadata.get_all("Classifier") or []
    pythons = [
        name.rpartition(" :: ")[2]
        for name in classifiers
        if name.startswith("Programming Language :: Python :: 3.")
    ]
    assert pythons == ["3.11", "3.12", "3.13"]
    assert "Typing :: Typed" in classifiers
    assert [name for name in classifiers if name.startswith("License ::")] == []


def test_both_commands_start_the_same(distribution: Distribution) -> None:
    """The second has the distribution's own name, so that `uvx observational-memory-proxy demo`
    finds it."""
    assert [
        (entry.group, entry.name, entry.value)
        for entry in sorted(distribution.entry_points, key=lambda e: e.name)
    ] == [("console_scripts", command, "om_proxy.cli:main") for command in sorted(COMMANDS)]
