"""`om-proxy check`: what it prints of the settings, and of a faulty file."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from om_proxy.cli import main
from tests.cli.command_line import MISPLACED_KEY, MISPLACED_KEY_CONFIG, run_om_proxy
from tests.support.missing_package import hide_package
from tests.support.postgres_server import find_postgres_url


def test_check(tmp_path: Path) -> None:
    """In a folder without a file, it prints the defaults in a few lines; the last says that all is
    well."""
    done = run_om_proxy("check", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) <= 15
    assert lines[0] == "settings: the built-in defaults; om-proxy init writes a file to edit"
    assert lines[2:4] == [
        "upstream: openai at https://api.openai.com/v1, for every model (chat, responses)",
        "upstream: anthropic at https://api.anthropic.com/v1, for every model (messages)",
    ]
    assert any(line.startswith("tokens: messages are observed at 30000") for line in lines)
    assert (
        "the store promises: a power cut loses no turn whose reply has ended; forgotten bytes are "
        "overwritten once no reader holds them; text is not encrypted; search: index; backups keep what "
        "was forgotten since"
    ) in lines
    assert "the store is not opened, and no model server asked: om-proxy doctor does both" in lines
    assert lines[-1] == "nothing needs attention"


def test_check_of_a_key_that_others_can_spend(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without `auth.keys` it is a warning, a loud one off loopback."""
    config = tmp_path / "om.yaml"
    paid = 'upstream: [{base_url: "http://h", api_key: sk-hush}]\n'
    for bind, start in (
        ("", "warning: upstream upstream has an api_key"),
        ("server: {host: 0.0.0.0, admin_token: 0123456789abcdef0123}\n", "warning: ANYBODY"),
    ):
        config.write_text(paid + bind, encoding="utf-8")
        assert main(["check", "--config", str(config)]) == 0
        out = capsys.readouterr().out
        assert any(line.startswith(start) for line in out.splitlines())
        assert "hush" not in out
    config.write_text("memory: {model: openai/small, api_key: sk-hush}\n", encoding="utf-8")
    assert main(["check", "--config", str(config)]) == 0
    assert "warning: memory model openai/small has an api_key" in capsys.readouterr().out


def test_check_of_a_store_in_memory(tmp_path: Path) -> None:
    """It says what is lost with the process. No store is made by looking."""
    done = run_om_proxy("check", cwd=tmp_path, OM_PROXY__STORAGE__URL='"sqlite:///:memory:"')
    assert "the store promises: all memories end with the process;" in done.stdout
    run_om_proxy("check", cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("durable", "said"),
    [("true", "may lose the turns of the last second"), ("false", "all memories end")],
)
def test_check_of_a_redis(tmp_path: Path, durable: str, said: str) -> None:
    """It says what every server that is accepted promises, without asking one."""
    address = {"OM_PROXY__STORAGE__URL": "redis://127.0.0.1:1/0"}
    done = run_om_proxy("check", cwd=tmp_path, **address, OM_PROXY__STORAGE__DURABLE=durable)
    [line] = [line for line in done.stdout.splitlines() if line.startswith("the store promises")]
    assert said in line
    assert "a failover may lose turns that were not replicated" in line
    assert "forgotten bytes leave memory at once and the log once it is rewritten" in line


def test_check_of_an_encrypted_store(tmp_path: Path) -> None:
    """It names the master keys by their ids, and shows none."""
    keys = ["A" * 43, "B" * 43]
    file = tmp_path / "old.key"
    file.write_text(keys[1])
    setting = f"[{keys[0]}, 'file:{file}']"
    done = run_om_proxy("check", "--all", cwd=tmp_path, OM_PROXY__STORAGE__ENCRYPTION_KEY=setting)
    assert (done.returncode, done.stderr) == (0, "")
    assert "text is encrypted, and titles cannot be searched; " in done.stdout
    assert re.search(r"master keys of the store.*: [0-9a-f]{12}, [0-9a-f]{12}\n", done.stdout)
    assert "storage.encryption_key = (set)  (env " in done.stdout
    assert not any(key in done.stdout for key in keys)
    file.unlink()
    done = run_om_proxy("check", cwd=tmp_path, OM_PROXY__STORAGE__ENCRYPTION_KEY=setting)
    assert done.stdout == ""
    assert done.stderr == (
        "om-proxy: storage.encryption_key: the file cannot be read: No such file or directory\n"
    )


@pytest.mark.parametrize(
    ("setting", "url", "package", "extra"),
    [
        ("url", "postgresql://om@127.0.0.1/om", "asyncpg", "postgres"),
        ("url", "redis://127.0.0.1/0", "redis", "redis"),
        ("keys_url", "postgresql://om@127.0.0.1/keys", "asyncpg", "postgres"),
        ("keys_url", "sqlite:///keys.db", "cryptography", "encryption"),
    ],
)
def test_check_of_a_store_whose_package_is_not_installed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    setting: str,
    url: str,
    package: str,
    extra: str,
) -> None:
    """One line says how to install it, as the server's refusal to start does; the status is 3."""
    rooms = ("om_proxy.storage.postgres", "om_proxy.storage.redis")
    hide_package(monkeypatch, package, "om_proxy.storage.encryption.master_keys", *rooms)
    key = f", encryption_key: {'00' * 32}" if setting == "keys_url" else ""
    (tmp_path / "x.yaml").write_text(f"storage: {{{setting}: '{url}'{key}}}\n")
    if extra == "encryption":
        setting = "encryption_key"
    assert main(["check", "--config", str(tmp_path / "x.yaml")]) == 3
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"om-proxy: storage.{setting}: ")
    assert f": pip install 'observational-memory-proxy[{extra}]', or in a clone pip " in err
    assert err.endswith(f" pip install '.[{extra}]'\n")


def test_check_of_a_postgresql(tmp_path: Path) -> None:
    """It says what such a server does not promise, too: without keys apart, and with them."""
    address = {"OM_PROXY__STORAGE__URL": "postgresql://om@127.0.0.1:1/om"}
    rows = "forgotten rows are gone at once and their bytes once the tables are rewritten"
    log = "the server's log keeps forgotten bytes until it is used again"
    power = "a power cut loses no turn whose reply has ended"
    ends = "backups keep what was forgotten since"
    done = run_om_proxy("check", cwd=tmp_path, **address)
    said = f"{power}; {rows}; {log}; text is not encrypted; search: index; {ends}"
    assert f"the store promises: {said}" in done.stdout.splitlines()
    apart = {
        "OM_PROXY__STORAGE__ENCRYPTION_KEY": "00" * 32,
        "OM_PROXY__STORAGE__KEYS_URL": "sqlite:///k.db",
    }
    done = run_om_proxy(
        "check", cwd=tmp_path, **address, **apart, OM_PROXY__STORAGE__DURABLE="false"
    )
    power, ends = (
        "a power cut may lose the turns of the last second",
        "no key opens forgotten text in backups of the data",
    )
    said = f"{power}; {rows}; {log}; text is encrypted, and titles cannot be searched; search: newest 2000; {ends}"
    assert f"the store promises: {said}" in done.stdout.splitlines()
    assert list(tmp_path.iterdir()) == []


def test_check_of_a_key_store_that_is_the_data_by_another_name(tmp_path: Path) -> None:
    """A server would not start. A server that is away is nothing to compare."""
    (tmp_path / "om.db").touch()
    (tmp_path / "keys.db").hardlink_to(tmp_path / "om.db")
    url = find_postgres_url()
    apart = {"OM_PROXY__STORAGE__ENCRYPTION_KEY": "00" * 32}
    for one, other, said in (
        ("sqlite:///om.db", "sqlite:///keys.db", "it is the file of storage.url by another name"),
        (
            url,
            url.replace("127.0.0.1", "localhost"),
            "it is the database of storage.url by another",
        ),
    ):
        names = {"OM_PROXY__STORAGE__URL": one, "OM_PROXY__STORAGE__KEYS_URL": other}
        done = run_om_proxy("check", cwd=tmp_path, **apart, **names)
        assert done.returncode == 3
        assert done.stderr.startswith(f"om-proxy: storage.keys_url: {said}")
        assert done.stderr.count("\n") == 1
    away = {
        "OM_PROXY__STORAGE__URL": url,
        "OM_PROXY__STORAGE__KEYS_URL": "postgresql://om@127.0.0.1:1/keys",
    }
    done = run_om_proxy("check", cwd=tmp_path, **apart, **away)
    assert "storage.keys_url" not in done.stdout.partition("needs attention")[2]


def test_check_all(tmp_path: Path) -> None:
    """With --all it prints every setting and where it comes from; the warnings still come last."""
    section = "OM_PROXY__MEMORY__RETRIEVAL"
    setting = {"ENABLED": "true", "VECTOR": "true", "EMBEDDING_MODEL": "local:/no/model.onnx"}
    environ = {f"{section}__{name}": value for name, value in setting.items()}
    done = run_om_proxy("check", "--all", cwd=tmp_path, **environ)
    lines = done.stdout.splitlines()
    assert "memory.observation.message_tokens = 30000  (default)" in lines
    assert lines[-1] == (
        "warning: embedding model local:/no/model.onnx: there is no file /no/model.onnx"
    )


def test_check_in_json(tmp_path: Path) -> None:
    """For programs: every setting with its origin, and the warnings. No secret is in it."""
    (tmp_path / "x.yaml").write_text(
        "upstream: [{base_url: 'http://h', api_key: hush}]\nmemory: {retrieval: on}\n"
    )
    done = run_om_proxy("check", "--json", "--config", "x.yaml", cwd=tmp_path)
    report = json.loads(done.stdout)
    assert report["file"] == "x.yaml"
    found = {one["name"]: (one["value"], one["origin"]) for one in report["settings"]}
    assert found["memory.retrieval.enabled"] == ("true", "x.yaml:2")
    assert found["upstream[0].api_key"] == ("(set)", "x.yaml:1")
    assert any("base_url has no path" in text for text in report["warnings"])
    assert "hush" not in done.stdout


def test_check_of_a_model(tmp_path: Path) -> None:
    """It shows the settings in force for a model and resource, from file and environment."""
    (tmp_path / "x.yaml").write_text(
        'models: {"gpt-4o*": {observation: {message_tokens: 20000}}}\n'
    )
    env = {"OM_PROXY__MEMORY__TIMEZONE": "Asia/Tokyo", "OM_PROXY_CONFIG": "x.yaml"}
    done = run_om_proxy(
        "check", "--all", "--model", "gpt-4o-mini", "--resource", "u", cwd=tmp_path, **env
    )
    assert (
        'memory.observation.message_tokens = 20000  (models["gpt-4o*"], x.yaml:1)'
        in done.stdout.splitlines()
    )
    assert (
        "memory.timezone = Asia/Tokyo  (env OM_PROXY__MEMORY__TIMEZONE)" in done.stdout.splitlines()
    )


def test_check_warns_of_what_is_not_in_effect(tmp_path: Path) -> None:
    """A setting that has an effect gives no warning."""
    (tmp_path / "x.yaml").write_text(
        "memory: {retrieval: {enabled: true, offer: always, notes: false}}\nretention: {ttl_days: 7}\n"
    )
    assert warnings(run_om_proxy("check", "--config", "x.yaml", cwd=tmp_path)) == []


def test_check_warns_of_vectors_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(
        "memory: {retrieval: {vector: true, embedding_model: 'local:/no/model.onnx'}}\n"
    )
    assert warnings(run_om_proxy("check", "--config", "x.yaml", cwd=tmp_path)) == [
        "embedding model local:/no/model.onnx: there is no file /no/model.onnx"
    ]


def warnings(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [
        line.removeprefix("warning: ")
        for line in done.stdout.splitlines()
        if line.startswith("warning: ")
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("memory:\n  observation: {message_tokens: many}\n", r"x\.yaml:2.*message_tokens.*many"),
        ("memmory: {}\n", r"x\.yaml:1.*memmory"),
        ("memory: [\n", r"x\.yaml"),
        ("server: {host: 0.0.0.0}\n", r"admin_token"),
        ("storage: {url: 'mysql://db/om'}\n", r"x\.yaml:1.*storage\.url.*sqlite:///"),
        ("storage: {url: 'redis://cache/om'}\n", r"x\.yaml:1.*storage\.url.*sqlite:///"),
        (
            "storage: {url: 'redis://h?bogus=geheim'}\n",
            r"x\.yaml:1.*storage\.url = \(hidden\): must have no options",
        ),
        ("storage: {encryption_key: k}\n", r"x\.yaml:1.*storage\.encryption_key.*must be 32 bytes"),
        (
            "server: {workers: 2}\nstorage: {url: 'sqlite:///:memory:'}\n",
            r"x\.yaml:1.*server\.workers.*cannot share a store",
        ),
    ],
    ids=[
        *(
            "wrong type",
            "unknown key",
            "no YAML",
            "open without a token",
            "another database",
            "Redis",
            "an option of a Redis",
            "encryption",
        ),
        "many and no file",
    ],
)
def test_a_faulty_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    """The status is 3, and the error names key, value, rule and line."""
    (tmp_path / "x.yaml").write_text(text)
    assert main(["check", "--config", str(tmp_path / "x.yaml")]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("om-proxy: ")
    assert re.search(said, err, flags=re.DOTALL)


def test_a_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A named file must exist; the error is one line."""
    assert main(["check", "--config", str(tmp_path / "nowhere.yaml")]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert "nowhere.yaml" in line


def test_check_repeats_no_secret(tmp_path: Path) -> None:
    """A key in a wrong place is not printed; the text around it is."""
    (tmp_path / "x.yaml").write_text(MISPLACED_KEY_CONFIG)
    done = run_om_proxy(
        "check", "--all", "--config", "x.yaml", "--model", MISPLACED_KEY, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "hush" not in done.stdout
    assert "sk-proj" not in done.stdout
    assert re.search(
        r"^upstream\[0\]\.base_url = http://127\.0\.0\.1:9/\S.*/v1 ", done.stdout, flags=re.M
    )
