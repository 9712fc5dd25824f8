"""Make the site of docs/, and the list of pages in docs/llms.txt: run by `scripts/site`.

mkdocs.yml names this module as its hook: it adds the pages that stand outside of docs/, leads links
to other files nowhere, and gives the page of the admin API the fields of its answers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.docs import reference

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LLMS = DOCS / "llms.txt"
OUTSIDE = ("SECURITY.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
LINK = re.compile(r"\[([^\]]*)\]\(((?:\.\./)+)([^)#]+)(#[^)]*)?\)")


def read_nav() -> Any:
    """The navigation of mkdocs.yml."""
    return yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]


def list_pages(nav: Any, section: str = "") -> Iterator[tuple[str, str]]:
    """Each page of a navigation, with the title of its section."""
    for part in nav:
        if isinstance(part, str):
            yield section, part
        else:
            for title, inner in part.items():
                pages = [inner] if isinstance(inner, str) else inner
                yield from list_pages(pages, section or title)


# ── llms.txt ──────────────────────────────────────────────────────────────────────────────────────


def llms_text() -> str:
    """The pages of docs/ for programs that read: a line each, with its title and first sentence."""
    lines = ["# om-proxy", "", f"> {summarize((ROOT / 'README.md').read_text('utf-8'))}"]
    section = ""
    for group, name in list_pages(read_nav()):
        if name in OUTSIDE:
            continue
        if group != section:
            lines += ["", f"## {group}", ""]
            section = group
        text = (DOCS / name).read_text(encoding="utf-8")
        title = text.partition("\n")[0].removeprefix("# ")
        summary = summarize(text)
        lines.append(f"- [{title}]({name})" + (f": {summary}" if summary else ""))
    return "\n".join(lines) + "\n"


def summarize(text: str) -> str:
    """The first sentence of a page that begins with a paragraph, without links; else nothing."""
    block = text.replace(f"\n{reference.MADE_BY}\n", "").split("\n\n")[1]
    if block[0] in "<#|-`!1":
        return ""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(block.split()))
    return re.split(r"(?<=[.:;])\s", plain)[0].rstrip(":.;") + "."


# ── hooks of mkdocs ───────────────────────────────────────────────────────────────────────────────


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that stand beside docs/."""
    from mkdocs.structure.files import File

    for name in OUTSIDE:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links out of docs/ to the pages that were added; of other files only the name stays."""
    if page.file.src_uri == "reference/admin-api.md":
        markdown = reference.admin_api_page(with_answers=True)
    if page.file.src_uri in OUTSIDE:
        markdown = re.sub(r"\]\(docs/", "](", markdown)
        return re.sub(r"\[([^\]]*)\]\((?!https?:|#)([^)#]+)(#[^)]*)?\)", _keep_if_page, markdown)
    depth = page.file.src_uri.count("/")
    return LINK.sub(lambda link: _lead_outside(link, depth), markdown)


def _keep_if_page(link: re.Match[str]) -> str:
    known = link[2] in OUTSIDE or (DOCS / link[2]).is_file()
    return link[0] if known else link[1]


def _lead_outside(link: re.Match[str], depth: int) -> str:
    words, ups, path, anchor = link[1], link[2].count("../"), link[3], link[4] or ""
    if ups <= depth:
        return link[0]
    if path == "README.md":
        return f"[{words}]({'../' * depth}README.md)"
    return f"[{words}]({'../' * depth}{path}{anchor})" if path in OUTSIDE else words


if __name__ == "__main__":
    LLMS.write_text(llms_text(), encoding="utf-8")
