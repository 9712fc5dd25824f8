"""The site of docs/ and the list of its pages: each page is in them, and each link leads somewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs import site

MKDOCS = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    subprocess.run([*MKDOCS, str(folder)], cwd=site.ROOT, env=environment, check=True)
    return folder


def test_every_page_is_in_the_site(built: Path) -> None:
    """The strict build finds a page without a place, and a link or an anchor that leads nowhere."""
    for page in site.DOCS.rglob("*.md"):
        made = built / page.relative_to(site.DOCS).with_suffix(".html")
        assert made.is_file() or (made.parent / "index.html").is_file()


def test_the_site_finds_every_field_of_the_admin_api(built: Path) -> None:
    """A search finds each route, and each field of an answer."""
    index = (built / "search" / "search_index.json").read_text(encoding="utf-8")
    assert "reference/admin-api.html#threadline" in index
    assert "pending_threshold" in index
    assert "/om/v1/threads/{thread}/undo" in index


def test_the_site_loads_nothing_from_elsewhere(built: Path) -> None:
    """No font, no script and no style of another server."""
    page = (built / "index.html").read_text(encoding="utf-8")
    assert not [tag for tag in page.split("<") if "src=http" in tag or 'src="http' in tag]
    assert "fonts.googleapis.com" not in page


def test_llms_txt_is_up_to_date() -> None:
    """It is what `scripts/site` makes of the pages."""
    assert site.LLMS.read_text(encoding="utf-8") == site.llms_text()
