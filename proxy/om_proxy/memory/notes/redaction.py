"""Redact secrets in notes before the notes are stored: keys, tokens and passwords, by their shape.
The transcript keeps them.

A note lives long, other models read it, and a resource's threads may share it, so it must not hold
a key that a user pasted once. The kind of secret replaces it, so that the note still says
what happened.

A secret is recognised by its shape, not by a word beside it: texts use `password` far more often
for rules and forms than for a password. Three shapes count as a secret:

- the fixed beginning that its issuer gives it;
- a place that holds nothing else: a URL's password, `Authorization`, a signed URL, `curl -u`;
- a name like `api_key` or a flag like `--token`, with a value after it that is no word.

Tools often return text within text: in a string of JSON a line ends with the two characters `\\n`,
in an address `=` is `%3D`. The patterns match such escapes too, so that a note keeps its words to
the letter.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, TypeVar

_W = r"[A-Za-z0-9_-]"
_HEX = "[0-9a-f]"
_PEM = r"(?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----"
# the letter or digit before is the end of an escape, not of a word: `\n`, `\u003d`, `\x3d`, `%3D`,
# `%253D`
_ESCAPED = rf"(?<=\\[nrtbf])|(?<=\\u{_HEX}{_HEX}{_HEX}{_HEX})|(?<=\\x{_HEX}{_HEX})|(?i:(?<=%{_HEX}{_HEX})|(?<=%25{_HEX}{_HEX}))"
_SPACE = r"(?:\s|\\[nrt]|%20)"
_QUOTES = r"(?:\\{0,3}[\"'`*]|\\u002[27]|%2[27]){0,3}"
_EQUALS = r"(?:=>|:=|={1,2}|:|→|->|%3[AaDd]|\\u003[ad])"

# kind, and the full pattern of what its issuers make; of equal beginnings the longer comes first
ISSUED_SECRETS = (
    ("Anthropic key", rf"sk-ant-{_W}{{20,}}"),
    ("OpenRouter key", rf"sk-or-v1-{_HEX}{{32,}}"),
    # two digits and a long word: `sk-` begins CSS classes too
    ("API key", rf"sk-(?=(?:{_W}{{0,99}}\d){{2}})(?={_W}{{0,99}}[A-Za-z0-9]{{12}}){_W}{{20,}}"),
    ("Stripe key", r"(?:sk|rk)_(?:live|test|prod)_[A-Za-z0-9]{16,}|whsec_[A-Za-z0-9+/]{32,}={0,2}"),
    ("AWS key", r"(?:AKIA|ASIA|ABIA|ACCA|A3T[A-Z0-9])[A-Z2-7]{16}(?![A-Z0-9])"),
    ("GitHub token", r"gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{60,}"),
    (
        "GitLab token",
        rf"gl(?:pat|dt|rt|rtr|cbt|ptt|ft|imt|agent|oas|soat|ffct)-{_W}{{20,}}(?:\.{_W}+)*",
    ),
    (
        "Slack token",
        r"xox[abeoprs](?:\.xox[bp])?-[A-Za-z0-9-]{10,}|xapp-\d-[A-Z0-9]+-\d+-[a-z0-9]+",
    ),
    ("Google key", rf"AIza{_W}{{35}}(?!{_W})|GOCSPX-{_W}{{28}}|ya29\.{_W}{{20,}}|1//0{_W}{{30,}}"),
    ("SendGrid key", rf"SG\.{_W}{{16,32}}\.{_W}{{16,64}}"),
    ("Mailgun key", rf"key-{_HEX}{{32}}(?!{_W})"),
    ("Mailchimp key", rf"{_HEX}{{32}}-us\d{{1,2}}(?!{_W})"),
    ("Twilio key", rf"SK{_HEX}{{32}}(?!{_W})"),
    ("npm token", r"npm_[A-Za-z0-9]{36}"),
    ("PyPI token", rf"pypi-{_W}{{50,}}"),
    ("RubyGems key", rf"rubygems_{_HEX}{{48}}"),
    ("Docker token", rf"dckr_(?:pat|oat)_{_W}{{20,}}"),
    ("Hugging Face token", r"(?:hf_|api_org_)[A-Za-z0-9]{30,}"),
    ("Groq key", r"gsk_[A-Za-z0-9]{40,}"),
    ("xAI key", r"xai-[A-Za-z0-9]{60,}"),
    ("NVIDIA key", rf"nvapi-(?={_W}{{0,99}}\d){_W}{{32,}}"),
    ("Perplexity key", r"pplx-[A-Za-z0-9]{40,}"),
    ("Replicate token", r"r8_[A-Za-z0-9]{37,}"),
    ("Tavily key", rf"tvly-(?={_W}*\d){_W}{{24,}}"),
    ("Pinecone key", r"pcsk_[A-Za-z0-9_]{40,}"),
    ("LangSmith key", rf"lsv2_(?:pt|sk)_{_HEX}{{32}}_{_HEX}{{10}}"),
    ("DigitalOcean token", rf"do[opr]_v1_{_HEX}{{64}}"),
    ("Databricks token", rf"dapi{_HEX}{{32}}(?:-\d)?(?!{_W})"),
    ("Shopify token", r"shp(?:at|ca|pa|ss)_[A-Fa-f0-9]{32}"),
    ("Square token", rf"sq0[a-z]{{3}}-{_W}{{22,}}|EAAA{_W}{{60}}"),
    ("Telegram token", rf"\d{{8,10}}:AA{_W}{{33}}(?!{_W})"),
    ("Discord token", rf"[MNO]{_W}{{23,25}}\.{_W}{{6}}\.{_W}{{27,38}}"),
    ("JSON Web Token", rf"eyJ{_W}{{10,}}+\.eyJ{_W}{{10,}}+\.{_W}*"),
    ("Azure secret", rf"[A-Za-z0-9_~.]{{3}}\dQ~[A-Za-z0-9_~.-]{{31,34}}(?!{_W})"),
    ("Vault token", rf"hv[sbr]\.{_W}{{24,}}"),
    ("Terraform token", rf"[A-Za-z0-9]{{14}}\.atlasv1\.{_W}{{60,}}"),
    ("Linear key", r"lin_(?:api|oauth)_[A-Za-z0-9]{32,}"),
    ("Notion token", r"ntn_[A-Za-z0-9]{40,}|secret_[A-Za-z0-9]{43}(?![A-Za-z0-9])"),
    ("Atlassian token", r"AT(?:ATT|CTT|BB)[A-Za-z0-9_=-]{24,}"),
    ("Airtable token", rf"pat[A-Za-z0-9]{{14}}\.{_HEX}{{64}}"),
    ("Figma token", rf"fig[dou]r?_{_W}{{36,}}"),
    ("Postman key", rf"PMAK-{_HEX}{{24}}-{_HEX}{{34}}"),
    ("New Relic key", r"NR(?:AK|JS|AL|II)-[A-Za-z0-9]{19,}"),
    ("Grafana token", r"gl(?:sa|c)_[A-Za-z0-9+/_]{32,}={0,2}"),
    ("Sentry token", r"sntry[su]_[A-Za-z0-9+/=_]{40,}"),
    ("Supabase key", rf"sbp_{_HEX}{{40}}|sb_secret_{_W}{{20,}}"),
    ("PlanetScale key", rf"pscale_(?:tkn|pw|oauth)_{_W}{{32,}}"),
    ("Doppler token", r"dp\.(?:pt|st|sa|ct|scim|audit)\.(?:[a-z0-9_-]{2,35}\.)?[A-Za-z0-9]{40,}"),
    ("Heroku key", rf"HRKU-{_W}{{30,}}"),
    ("Fly token", r"fo1_[A-Za-z0-9_-]{40,}|fm[12][ar]?_[A-Za-z0-9+/=]{60,}"),
    ("1Password key", r"ops_eyJ[A-Za-z0-9+/]{100,}={0,3}|A3(?:-[A-Z0-9]{5,6}){5,6}(?![A-Z0-9])"),
    ("age key", r"AGE-SECRET-KEY-1[A-Z0-9]{58}"),
)
_EOL = r"(?:\s|\\{1,4}[nrt])"
_PEM_HEADER = r"(?:Proc-Type|DEK-Info|Version|Comment|Hash|Charset): [^\n\\]{1,100}"
# if the end is missing: the lines that can only be the key's
PRIVATE_KEY_BLOCK = re.compile(
    rf"-----BEGIN {_PEM}(?:(?:(?!-----)[\s\S]){{0,20000}}-----END {_PEM}|(?:{_EOL}+{_PEM_HEADER}){{0,4}}(?:{_EOL}*[A-Za-z0-9+/=]{{16,}})*)"
)

# what follows such names and is no secret: variables, ways to hash and to sign, addresses
_NOT_A_VALUE = (
    r"(?![$<{*]|x{3}|argon2|bcrypt|scrypt|pbkdf2|sha-?\d|md5|[hre]s\d|ed25519|aes|base\d\d|oauth|utf-?8|https?:"
    r"|(?-i:\.{0,2}/[a-z0-9._-]{3,}(?:[/\s\"'`\\]|\Z)))"
)
# between a name and its value: `PASSWORD="…"`, `password: …`, `the password for the router is …`
_NAME_VALUE_LINK = (
    rf"{_QUOTES}(?:{_SPACE}{{0,3}}{_EQUALS}|(?:\s(?:for|of|on)\s[^\n.:=]{{1,40}}?)?\s(?:is|was|are|set to|changed to))"
    rf"{_SPACE}{{0,3}}{_QUOTES}"
)
# between a flag and its value, in a command line or a list
_FLAG_VALUE_LINK = rf"{_QUOTES},?{_SPACE}{{1,3}}{_QUOTES}"
_FLAG_PREFIX = "--(?:[a-z0-9]{1,20}-){0,3}"
# schemes of `Authorization`, besides those that are recognised without that word
_AUTH_SCHEMES = "token|bot|key|api-?key|apitoken|geniekey"
_KEY_NAMES = (
    r"(?:access|account|api|auth|client|encryption|master|private|secret|shared|signing)[_ -]?key"
)
# written where a password is to be filled in
_PLACEHOLDERS = r"(?i:pass(?:word|wd)?|pwd?|secret|token|(?:api_?)?key|x+|\*+|\.+)"
_PASSWORDS = "passw(?:or)?d|passphrase|passcode"
_SIGNATURE_NAMES = (
    r"sig|signature|x-amz-signature|x-amz-security-token|access_token|auth_token|api_?key|key|token"
)


def _match_after_name(
    names: str, characters: str, least: int, link: str = _NAME_VALUE_LINK
) -> re.Pattern[str]:
    """Return the pattern of a value after a name. The value has letters and digits, because it is
    no word and no number. Its last character is no full stop."""
    both = rf"(?={characters}{{0,200}}\d)(?={characters}{{0,200}}[A-Za-z])"
    return re.compile(
        rf"((?i:{names}){link})(?i:{_NOT_A_VALUE}){both}{characters}{{{least - 1},300}}(?![.~?,-]){characters}"
    )


# kind, and a pattern whose first group stays
SECRETS_BY_PLACE = (
    ("webhook", re.compile(r"(https://hooks\.slack\.com/[a-z]{1,20}/)[A-Za-z0-9/]{20,}")),
    (
        "webhook",
        re.compile(r"(https://discord(?:app)?\.com/api/webhooks/\d{1,30}/)[A-Za-z0-9_-]{20,}"),
    ),
    (
        "password",
        re.compile(
            r"(\b[a-z][a-z0-9+.-]{1,15}://[^\s/:@'\"<>]{0,100}:)"
            rf"(?!{_PLACEHOLDERS}@|[$<{{\[])[^\s/@'\"<>]{{3,200}}(?=@)"
        ),
    ),
    (
        "credential",
        re.compile(
            rf"((?:\b|{_ESCAPED})(?i:bearer|basic){_SPACE}{{1,3}})(?=[A-Za-z0-9._~+/-]*\d)[A-Za-z0-9._~+/-]{{16,}}={{0,2}}"
        ),
    ),
    (
        "credential",
        _match_after_name(
            "authorization",
            "[A-Za-z0-9+/_=.~-]",
            16,
            rf"{_NAME_VALUE_LINK}(?i:(?:{_AUTH_SCHEMES}){_SPACE}{{1,3}})?",
        ),
    ),
    (
        "signature",
        re.compile(
            rf"((?:[?&]|\\u0026)(?i:{_SIGNATURE_NAMES})(?:=|\\u003d))(?=[\w%.~+/-]*\d)[\w%.~+/-]{{16,}}=*"
        ),
    ),
    (
        "password",
        _match_after_name(rf"{_PASSWORDS}|(?:\b|{_ESCAPED})pwd", r"[A-Za-z0-9+/_=.~!@#$%^&*?-]", 6),
    ),
    (
        "password",
        _match_after_name(
            f"{_FLAG_PREFIX}(?:{_PASSWORDS}|pwd)",
            r"[A-Za-z0-9+/_=.~!@#$%^&*?-]",
            6,
            _FLAG_VALUE_LINK,
        ),
    ),
    (
        "secret",
        _match_after_name(rf"secret|token|credential|{_KEY_NAMES}", "[A-Za-z0-9+/_=.~-]", 16),
    ),
    (
        "secret",
        _match_after_name(
            f"{_FLAG_PREFIX}(?:token|client-secret|(?:access|api|auth|secret)-?key)",
            "[A-Za-z0-9+/_=.~-]",
            12,
            _FLAG_VALUE_LINK,
        ),
    ),
)

# One command, to the end of its line and of the lines that a backslash continues.
CURL_COMMAND = re.compile(rf"(?:\b|{_ESCAPED})curl\b(?:\\\\\\n|\\(?!n)[\s\S]|[^\n\\])*")
# the user and the colon before a password
_CURL_USER = re.compile(
    r"([\s\"'](?:-[A-Za-z#]{0,6}[uU]|--(?:proxy-)?user)[\s=,\"'\\]{0,6}[^\s:=\"'\\<>]{1,100}:)"
    rf"(?!{_PLACEHOLDERS}(?:[\s\"'`\\,.]|\Z)|//|[$<{{\[])[^\s\"'`\\<>]{{2,199}}[^\s\"'`\\<>,.]"
)

# A match begins only where a word begins, and looks ahead no farther than a secret is long: that
# keeps the search linear.
_ISSUED_SECRET = re.compile(
    rf"(?=[A-Za-z0-9_~.])(?:(?<!{_W})|{_ESCAPED})(?:"
    + "|".join(f"(?P<k{n}>{p})" for n, (_, p) in enumerate(ISSUED_SECRETS))
    + ")"
)
# Observed or Reflected: a dataclass with `text`, `task`, `suggestion`, and perhaps a `title`
Notes = TypeVar("Notes")


def redact_secrets(text: str) -> str:
    """Return the text with `[redacted: kind]` in place of each secret. Redacting the result again
    changes nothing."""
    text = PRIVATE_KEY_BLOCK.sub("[redacted: private key]", text)
    text = _ISSUED_SECRET.sub(
        lambda secret: f"[redacted: {ISSUED_SECRETS[int((secret.lastgroup or 'k')[1:])][0]}]", text
    )
    text = CURL_COMMAND.sub(
        lambda command: _CURL_USER.sub(r"\1[redacted: password]", command[0]), text
    )
    for kind, pattern in SECRETS_BY_PLACE:
        text = pattern.sub(rf"\1[redacted: {kind}]", text)
    return text


def redact_notes(notes: Notes) -> Notes:
    """Return the notes with their text, hints and title redacted."""
    texts: dict[str, Any] = {
        name: getattr(notes, name, None) for name in ("text", "task", "suggestion", "title")
    }
    return replace(notes, **{name: redact_secrets(text) for name, text in texts.items() if text})  # type: ignore[type-var] # any dataclass of notes
