"""Secrets in notes: every shape is found in every surrounding, and nothing else is."""

from __future__ import annotations

import re
import string
import time
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.memory.notes.redaction import ISSUED_SECRETS, redact_notes, redact_secrets
from tests.agents.corpus.honest import entries
from tests.support.long_forms import IS_LONG

LETTERS = {
    "A": string.ascii_letters + string.digits,
    "h": "0123456789abcdef",
    "w": string.ascii_letters + string.digits + "_-",
    "U": string.ascii_uppercase + "234567",
    "a": string.ascii_lowercase + string.digits,
    "d": string.digits,
    "l": string.ascii_letters,
    "b": string.ascii_letters + string.digits + "+/",
}
# kind → what its issuers make: {A36} stands for 36 letters and digits, {h32} for hexadecimal ones,
# and so on
SHAPES = {
    "Anthropic key": ["sk-ant-api03-{w93}AA", "sk-ant-admin01-{w93}AA"],
    "OpenRouter key": ["sk-or-v1-{h64}"],
    "API key": ["sk-{A48}", "sk-proj-{w100}{A20}77", "sk-svcacct-{A40}12-{A20}", "sk-{h32}"],
    "Stripe key": ["sk_live_{A24}", "rk_test_{A24}", "sk_live_51{A97}", "whsec_{A32}"],
    "AWS key": ["AKIA{U16}", "ASIA{U16}"],
    "GitHub token": ["ghp_{A36}", "gho_{A36}", "ghs_{A36}", "github_pat_{A22}_{A59}"],
    "GitLab token": ["glpat-{w20}", "gldt-{w20}", "glrt-{w20}"],
    "Slack token": [
        "xoxb-{d12}-{d12}-{A24}",
        "xoxp-{d12}-{d12}-{d12}-{h32}",
        "xapp-1-{U11}-{d13}-{h64}",
    ],
    "Google key": ["AIza{w35}", "GOCSPX-{w28}", "ya29.{w60}", "1//0{w40}"],
    "SendGrid key": ["SG.{w22}.{w43}"],
    "Mailgun key": ["key-{h32}"],
    "Mailchimp key": ["{h32}-us12"],
    "Twilio key": ["SK{h32}"],
    "npm token": ["npm_{A36}"],
    "PyPI token": ["pypi-AgEIcHlwaS5vcmc{w120}"],
    "RubyGems key": ["rubygems_{h48}"],
    "Docker token": ["dckr_pat_{w27}"],
    "Hugging Face token": ["hf_{l34}"],
    "Groq key": ["gsk_{A52}"],
    "NVIDIA key": ["nvapi-{A63}7", "nvapi-{w60}9xYz"],
    "xAI key": ["xai-{A80}"],
    "Perplexity key": ["pplx-{A48}"],
    "Replicate token": ["r8_{A37}"],
    "Tavily key": ["tvly-dev-{A30}7"],
    "Pinecone key": ["pcsk_{A6}_{A60}"],
    "LangSmith key": ["lsv2_pt_{h32}_{h10}"],
    "DigitalOcean token": ["dop_v1_{h64}", "dor_v1_{h64}"],
    "Databricks token": ["dapi{h32}", "dapi{h32}-2"],
    "Shopify token": ["shpat_{h32}", "shpss_{h32}"],
    "Square token": ["sq0atp-{w22}", "sq0csp-{w43}", "EAAA{w60}"],
    "Telegram token": ["{d10}:AA{w33}"],
    "Discord token": ["M{A23}.{w6}.{w38}"],
    "JSON Web Token": ["eyJ{A34}.eyJ{w120}.{w43}"],
    "Azure secret": ["{A3}8Q~{A34}"],
    "Vault token": ["hvs.{w90}", "hvb.{w120}"],
    "Terraform token": ["{A14}.atlasv1.{w67}"],
    "Linear key": ["lin_api_{A40}"],
    "Notion token": ["ntn_{A46}", "secret_{A43}"],
    "Atlassian token": ["ATATT3{w180}={h8}"],
    "Airtable token": ["pat{A14}.{h64}"],
    "Figma token": ["figd_{w40}"],
    "Postman key": ["PMAK-{h24}-{h34}"],
    "New Relic key": ["NRAK-{U27}"],
    "Grafana token": ["glsa_{A32}_{h8}", "glc_{A80}"],
    "Sentry token": ["sntrys_{A80}", "sntryu_{h64}"],
    "Supabase key": ["sbp_{h40}", "sb_secret_{w31}"],
    "PlanetScale key": ["pscale_tkn_{w43}"],
    "Doppler token": ["dp.pt.{A43}", "dp.st.dev.{A40}"],
    "Heroku key": ["HRKU-{w60}"],
    "Fly token": ["fo1_{w43}", "fm2_{b120}"],
    "1Password key": ["ops_eyJ{A300}", "A3-{U6}-{U6}-{U5}-{U5}-{U5}-{U5}"],
    "age key": ["AGE-SECRET-KEY-1{U58}"],
}
SURROUNDINGS = [
    "{}", "* 🔴 (09:14) User's key is {}", "* 🟡 (09:14) it is `{}`, and works", 'the file holds "{}"', "export API={} && run",
    "they sent {}.", "({})", "['{}']", "<{}>", "https://host/path?x={}", "{}\n  * and then more", "密钥是：{}。",
    # text within text: of JSON as a string of JSON, and of addresses as a part of an address
    "line\\n{}\\nline", "a\\r\\n{}", "name\\t{}\\t", "say \\\"{}\\\"", "in a string of a string\\\\n{}\\\\n", "key\\u003d{}\\u0026x",
    "\\x1b[0m\\x20{}", "https://host/?next=x%3D{}%26y", "%22{}%22", "of%20{}", "x%253D{}",
]  # fmt: skip


def filled(template: str, rng: Random) -> str:
    def part(spec: re.Match[str]) -> str:
        made = "".join(rng.choices(LETTERS[spec[1]], k=int(spec[2])))
        # an underscore or hyphen at an end, or nothing but one kind of character, is no real one's
        return (
            made.replace(made[0], "k", 1).replace("_", "x").replace("-", "y")
            if made[-1] in "_-"
            else made
        )

    return re.sub(r"\{([A-Za-z])(\d+)\}", part, template)


@pytest.mark.parametrize("kind", [kind for kind, _ in ISSUED_SECRETS])
def test_what_is_issued(kind: str) -> None:
    """Each shape goes whole, its surrounding stays to the letter, and its kind is named."""
    rng = Random(kind)
    for template in SHAPES[kind]:
        for surrounding in SURROUNDINGS * 3:
            text = surrounding.format(secret := filled(template, rng))
            assert redact_secrets(text) == surrounding.format(f"[redacted: {kind}]"), (text, secret)


def test_there_are_forty() -> None:
    """There are as many kinds as the common services make."""
    assert len(ISSUED_SECRETS) >= 40
    assert set(SHAPES) == {kind for kind, _ in ISSUED_SECRETS}


PASSWORDS = ["hunter2", "Tr0ub4dor&3", "correct-horse-9-battery", "p4ssW0rd!", "x7$Kq!m2"]
KEYS = ["{A40}9a", "{h64}1a", "{b43}7z=", "{w32}3k"]
PLACED = [
    ("password", "postgres://app:{}@db.internal:5432/app", PASSWORDS),
    ("password", "redis://:{}@cache/0", PASSWORDS),
    ("password", "password: {}", PASSWORDS),
    ("password", "DB_PASSWORD={}", PASSWORDS),
    ("password", '{{"password": "{}"}}', PASSWORDS),
    ("password", "* 🔴 (10:00) User's Wi-Fi password is {}", PASSWORDS),
    ("password", "the password for the staging router is `{}`", PASSWORDS),
    ("password", "passphrase := {}", PASSWORDS),
    ("password", '{{\\"user\\": \\"ann\\", \\"password\\": \\"{}\\"}}', PASSWORDS),
    ("password", '{{\\\\\\"password\\\\\\": \\\\\\"{}\\\\\\"}}', PASSWORDS),
    ("password", "user: ann\\npassword: {}\\nport: 5432", PASSWORDS),
    ("password", "user=ann\\npwd={}\\n", PASSWORDS),
    ("password", "password\\u003d{}", PASSWORDS),
    ("password", "q=user%3Dann%26password%3D{}", ["hunter2", "x7pKqm2"]),
    ("password", "mysqldump --user root --password {} app", PASSWORDS),
    ("password", "run --db-password '{}' --verbose", PASSWORDS),
    ("password", '["run", "--password", "{}"]', PASSWORDS),
    ("password", '[\\"run\\", \\"--passphrase\\", \\"{}\\"]', PASSWORDS),
    ("password", "curl -u ann:{} https://host/x", [*PASSWORDS, "letmein"]),
    ("password", "curl -sSL https://host/x -u 'ann:{}' | jq .", [*PASSWORDS, "a:b"]),
    ("password", 'curl -X POST --user "ann@host:{}" https://host/x', PASSWORDS),
    ("password", '{{"command": "curl -suann:{}"}}', PASSWORDS),
    ("password", "curl -X POST \\\n  https://host/x \\\n  -u ann:{}\n", PASSWORDS),
    ("password", "curl -X POST \\\\\\n  https://host/x \\\\\\n  -u ann:{}\\n", PASSWORDS),
    ("password", "curl -u $ME:$PW --proxy-user ann:{} https://host", PASSWORDS),
    ("password", "set -e\\ncurl https://host/1\\ncurl -u ann:{}\\nls", PASSWORDS),
    ("password", '{{\\"command\\": [\\"curl\\", \\"-u\\", \\"ann:{}\\"]}}', PASSWORDS),
    ("credential", "Authorization: Bearer {}", KEYS[:2]),
    ("credential", "Authorization: Token {}", ["{h39}1", "{A31}7"]),
    ("credential", "-H 'Authorization: token {}'", ["{h38}1a"]),
    ("credential", '{{\\"Authorization\\": \\"Token {}\\"}}', ["{h38}1a"]),
    ("credential", "Authorization: ApiKey {}", ["{A38}1a"]),
    ("credential", "authorization = {}", ["{h38}1a"]),
    ("credential", "GET /\\nAuthorization:%20Bearer%20{}", KEYS[:2]),
    ("credential", "it sends\\nBearer {}\\nand so on", KEYS[:2]),
    ("credential", "-H 'authorization: basic {}'", KEYS[:2]),
    ("signature", "https://acct.blob.host/c/f?sv=1&sig={}", ["{A43}7%3D"]),
    ("signature", "https://host/f?X-Amz-Signature={}&x=1", ["{h63}1"]),
    ("signature", "https://host/f?x=1\\u0026sig={}\\u0026y=1", ["{A43}7"]),
    ("signature", "https://host/f?x\\u003d1\\u0026sig\\u003d{}", ["{A43}7"]),
    ("secret", "aws_secret_access_key = {}", KEYS),
    ("secret", "AccountKey={};EndpointSuffix=core", ["{b85}1A=="]),
    ("secret", "api_key: '{}'", KEYS),
    ("secret", "client-secret={}", KEYS),
    ("secret", '{{\\"api_key\\": \\"{}\\"}}', KEYS),
    ("secret", "API_KEY%3D{}%26x", KEYS[:2]),
    ("secret", "login --token {} --yes", KEYS),
    ("secret", "login --api-key {}", KEYS),
    ("secret", '["login", "--client-secret", "{}"]', KEYS),
    ("secret", "ACCESS_TOKEN={}", KEYS),
    ("secret", "* 🔴 (10:00) the API key is {}", KEYS),
    ("secret", "the token for the weather service was {}", KEYS),
    ("webhook", "https://hooks.slack.com/services/{}", ["T{U10}/B{U10}/{A24}"]),
    ("webhook", "https://discord.com/api/webhooks/123456789012345678/{}", ["{w68}"]),
]


@pytest.mark.parametrize(("kind", "place", "values"), PLACED)
def test_what_a_place_tells(kind: str, place: str, values: list[str]) -> None:
    """Any value at a place where only secrets stand is redacted; the place stays."""
    rng = Random(place)
    for value in values * 10:
        text = place.format(filled(value, rng))
        assert redact_secrets(text) == place.format(f"[redacted: {kind}]"), text


@pytest.mark.parametrize("kind", ["", "RSA ", "EC ", "OPENSSH ", "ENCRYPTED "])
def test_private_keys(kind: str) -> None:
    """The whole block; of one that was cut off, all lines that are the key's."""
    rng = Random(kind)
    lines = "\n".join(filled("{b64}", rng) for _ in range(20))
    begin, end = f"-----BEGIN {kind}PRIVATE KEY-----", f"-----END {kind}PRIVATE KEY-----"
    assert redact_secrets(f"a\n{begin}\n{lines}\n{end}\nb") == "a\n[redacted: private key]\nb"
    assert (
        redact_secrets(f"a\n{begin}\n{lines}\nand so on") == "a\n[redacted: private key]\nand so on"
    )
    assert (
        redact_secrets(f"{begin}\nNote: the rest was not shown")
        == "[redacted: private key]\nNote: the rest was not shown"
    )
    assert redact_secrets(rf"{begin}\nand so on") == r"[redacted: private key]\nand so on"


@pytest.mark.parametrize("end", ["\\n", "\\r\\n", "\\\\n", "\n", "\r\n", "\n    "])
@pytest.mark.parametrize(
    "head",
    [
        [],
        ["Proc-Type: 4,ENCRYPTED", "DEK-Info: AES-128-CBC,0123456789ABCDEF", ""],
        ["Version: GnuPG v2", ""],
    ],
)
def test_private_keys_with_other_line_ends(head: list[str], end: str) -> None:
    """A key within JSON has its line ends as two characters; before some keys stand lines about
    them."""
    rng = Random(end)
    begin = end.join(["-----BEGIN RSA PRIVATE KEY-----", *head])
    lines = end.join(filled("{b64}", rng) for _ in range(20))
    whole = f'{{"key": "{begin}{end}{lines}{end}-----END RSA PRIVATE KEY-----{end}"}}'
    assert redact_secrets(whole) == f'{{"key": "[redacted: private key]{end}"}}'
    assert redact_secrets(f'{{"key": "{begin}{end}{lines}') == '{"key": "[redacted: private key]'
    assert (
        redact_secrets(f"{begin}{end}{lines}{end}and so on")
        == f"[redacted: private key]{end}and so on"
    )


@pytest.mark.parametrize(
    "text",
    [
        "secret: /run/secrets/db1-password, token = ./tokens/dev2.txt",
        "the password must have 12 characters and a digit",
        "password: must change every 90 days",
        "password rules: at least 8 characters, password reset on May 22, 2023",
        "Password hashing is argon2id, password = argon2id, secret: sha256:verify",
        "api_key: ${OPENAI_API_KEY}, api_key=<your-key-1>, token: {{TOKEN_2}}, password=xxxxxxx1",
        "max_output_tokens: 100000, token budget is 30000, tokens = 12_000",
        "secret santa: room B12 at 18:00, the secret is patience",
        "next_page_token is sent back with the next request",
        "commit 4f2a9c1d8e7b6a5f4e3d2c1b0a9f8e7d6c5b4a39, uuid 3f2504e0-4f89-11d3-9a0c-0305e82c3301",
        "sk-loading-spinner-container-wrapper and sk-learn-compatible-estimator-v2",
        "keys look like sk-… or AKIA…, ghp_xxx, glpat-short",
        "model gpt-4o-2024-08-06, claude-sonnet-4-5-20250929, text-embedding-3-small",
        "git@github.com:org/repo.git, http://localhost:8400/v1, postgres://app@db/app, https://user:password@host/docs",
        "image sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "Basic understanding of OAuth2, bearer authentication with RS256",
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl user@host",
        "the token expired at 2024-05-01T10:00:00Z; the API key was rotated on 2024-05-02",
        "https://host/list?page_token=3&key=name&token=abc",
        "SKU SK1234567890, key-value-store-2, order key-12345",
        "arr[0] -> node.next, List<str>, 12:30:45, 1//0",
        # within JSON and addresses
        r"commit\n4f2a9c1d8e7b6a5f4e3d2c1b0a9f8e7d6c5b4a39\nAuthor: ann\n\n3f2504e0-4f89-11d3-9a0c-0305e82c3301",
        "diff%204f2a9c1d8e7b6a5f4e3d2c1b0a9f8e7d6c5b4a39%22 at%3D3f2504e0-4f89-11d3-9a0c-0305e82c3301",
        r"C:\new\reports\token2\secret-santa-2024.txt, C:\temp\basic-training-2024-05-01.md",
        r"password:\n2024-05-01 it was changed, {\"password\": \"must have 12 characters\"}",
        r"secret: /run/secrets/db1-password\ntoken = ./tokens/dev2.txt\n",
        r"{\"token_count\": 12345678901234567890, \"page_token\": \"3\", \"api_key\": \"${KEY_1}\"}",
        "https://host/?next=%2Flist%3Fpage_token%3D3%26name%3Dabcdefghijkl2024&token=abc",
        r"\nsk-loading-spinner-container-wrapper\nghp_xxx\nnvapi-docs, nvapi-reference-manual-for-driver-developers",
        # flags, and what stands behind them
        "use --password or --token, --password must be given since v2, --token was added in 2.4.1-beta-3",
        "--password-file /run/secrets/db1 --password-stdin --token-limit 128000 --max-tokens 100000",
        "--password $DB_PASSWORD1 --token <your-token-1> --token ${TOKEN_2} --password ********1 --token ./tokens/dev2.txt",
        "docker build --secret id=npmrc-token-2024,src=.npmrc2 --private-key keys/deploy-2024-05.pem",
        "docker run -u 1000:1000 --user node1:node2 -p 8080:80 app2, chown -R app1:app1 data",
        "curl -u user:password https://host/1, curl -u $USER:$PASS1 x, curl -u ann:<token-1> x, curl --user 'ann:***' x",
        "curl -sS -X POST https://host:8400/v1/users/1:2 -o out2.txt -H 'Accept: text/html'",
        "curl --upload-file a1:b2.txt and curl --unix-socket /run/x:1.sock, curl -url=https://host/x1",
        "curl -uann and later on user:admin2024",
        "curl https://host/1\ndocker run -u app1:app1",
        r"curl https://host/1\ndocker run -u app1:app1",
        # headers
        "Authorization: Token <your-token-1>, Authorization: Bearer ${TOKEN_1}, Authorization: token",
        "authorization: required since v2, authorization is role-based, Token 2 of 3, key 4",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    """Names, rules, hashes, addresses and forms: a note that lost them would be worth less."""
    assert redact_secrets(text) == text


def test_honest_notes_stay() -> None:
    """Nothing of the true logs that the observer's reading is tested with is taken for a secret."""
    texts = [entry.answer for entry in entries()]
    assert len(texts) > 20
    assert [text for text in texts if redact_secrets(text) != text] == []


PIECES = [
    "sk-", "ghp_", "AKIA", "eyJ", ".eyJ", ".", "password", "token", ":=", " is ", "=", "://", "@", "a:b", "[redacted: x]", "-", "_", "9",
    "\\n", '\\"', "%3D", "\\u003d", "--password ", "--token ", "curl -u a:", "Authorization: ", "Token ",
    "A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8S9t0", "-----BEGIN PRIVATE KEY-----", "\n", " ",
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join) | st.text())
def test_done_twice_is_done_once(text: str) -> None:
    """A placeholder is no secret: notes are redacted again with every reflection."""
    assert redact_secrets(redact_secrets(text)) == redact_secrets(text)


@dataclass(frozen=True)
class Made:
    text: str
    task: str | None = None
    title: str | None = None
    calls: int = 1


def test_several_in_one_command() -> None:
    """Each goes: were one left, it would go the next time."""
    said = "curl -u a:hunter2 --proxy-user b:hunter3 https://host && curl -u c:hunter4 x"
    gone = "[redacted: password]"
    assert (
        redact_secrets(said)
        == f"curl -u a:{gone} --proxy-user b:{gone} https://host && curl -u c:{gone} x"
    )


def test_hints_and_title_too() -> None:
    """Everything that is kept of an answer is redacted."""
    key = "ghp_" + "a1B2" * 9
    made = redact_notes(Made(f"* 🔴 token {key}", f"revoke {key}", None, 2))
    assert made == Made(
        "* 🔴 token [redacted: GitHub token]", "revoke [redacted: GitHub token]", None, 2
    )


HOSTILE = [
    "<", "a.", "password=", "password:", "password is ", "sk-", "sk-a", "eyJ", "eyJaaaaaaaaaaa-", "eyJaaaaaaaaaaa.", "http://", "http://a:",
    "dp.pt.", "SG.", "?sig=", "token=a1", "token for ", "bearer ", "1", "a1", "A3-AAAAA-", "-----BEGIN PRIVATE KEY-----", "\u200b",
    "\\n", "\\u003d", "%20", "%", "\\", '\\"', "-----BEGIN PRIVATE KEY-----\\n", "-----BEGIN PRIVATE KEY-----\nVersion: ", "--", "--a-",
    "--password ", "--token \\", "--password\\n", "curl ", "curl -u", "curl -u a", "curl -u a:", "-u a", "authorization:",
    "authorization: token ",
    "password\\", "password%3D", 'password\\"', "\\u0026sig=", "sig\\u003d", "%22%3D", "nvapi-", "nvapi-1",
]  # fmt: skip

HOSTILE_LENGTH = 300_000 if IS_LONG else 100_000


@pytest.mark.parametrize("part", HOSTILE)
def test_hostile_text_costs_no_more_than_its_length(part: str) -> None:
    """300 000 characters, in the short form 100 000, made to be searched again and again."""
    text = part * (HOSTILE_LENGTH // len(part))
    began = time.process_time()
    redact_secrets(text)
    assert time.process_time() - began < 2.0 * HOSTILE_LENGTH / 300_000
