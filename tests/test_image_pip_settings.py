"""pip in the build gets all of the machine's settings, whichever file or variable they stand in."""

from __future__ import annotations

import configparser
import io

from tests.image.pip_settings import merged

LISTED = """global.cert='/etc/mine.pem'
global.find-links='\\n/a\\n/b'
install.no-compile='true'
:env:.timeout='180'
:env:.cert='/etc/yours.pem'
"""


def test_settings_are_merged() -> None:
    """Variables count before files, lists stay lists, sections sections, and the bundle before
    all."""
    for bundle, cert in ((None, "/etc/yours.pem"), ("/etc/bundle.pem", "/etc/bundle.pem")):
        text = io.StringIO()
        merged(LISTED, bundle).write(text)
        read = configparser.RawConfigParser()
        read.read_string(text.getvalue())
        assert read.get("global", "cert") == cert
        assert read.get("global", "find-links").split() == ["/a", "/b"]
        assert read.get("global", "timeout") == "180"
        assert read.get("install", "no-compile") == "true"


def test_no_settings() -> None:
    """A machine without any gets an empty section."""
    assert merged("", None).sections() == ["global"]
    assert not merged("", None).items("global")
