"""pip in the build reaches the index as the machine does, whichever file or variable says how."""

from __future__ import annotations

import configparser
import io

from tests.image.pip_settings import merge_settings

LISTED = """global.cert='/etc/mine.pem'
global.find-links='\\n/a\\n/b'
install.find-links='/c'
:env:.timeout='180'
:env:.cert='/etc/yours.pem'
"""


def test_settings_are_merge_settings() -> None:
    """Variables count before files, lists stay lists, sections sections, and the bundle before
    all."""
    for bundle, cert in ((None, "/etc/yours.pem"), ("/etc/bundle.pem", "/etc/bundle.pem")):
        text = io.StringIO()
        merge_settings(LISTED, bundle).write(text)
        read = configparser.RawConfigParser()
        read.read_string(text.getvalue())
        assert read.get("global", "cert") == cert
        assert read.get("global", "find-links").split() == ["/a", "/b"]
        assert read.get("global", "timeout") == "180"
        assert read.get("install", "find-links") == "/c"


def test_no_settings() -> None:
    """A machine without any gets an empty section."""
    assert merge_settings("", None).sections() == ["global"]
    assert not merge_settings("", None).items("global")


def test_files_of_this_machine() -> None:
    """A setting that names another file is left out: the build has no such file."""
    listed = "global.constraint='/etc/xdg/pip/constraints.txt'\n:env:.log='/var/log/pip'"
    assert not merge_settings(listed, None).items("global")
