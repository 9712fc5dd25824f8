"""Play the demo and draw its end as a terminal shows it: docs/demo.svg, README's picture.

Run by `scripts/picture`. Two runs differ by about one per cent, because notes are made in the
background. So no test compares the picture with a new run.
"""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

from rich.console import Console

from om_proxy.cli.demo import summary
from om_proxy.cli.demo.play import play_story
from om_proxy.cli.demo.story import load_story
from om_proxy.cli.demo.summary import DemoResult
from om_proxy.cli.demo.table import LINES_AROUND_ROWS, Board, render_sums
from om_proxy.observability import logs

PICTURE = Path(__file__).parents[2] / "docs" / "demo.svg"
WIDTH_COLUMNS = 100
SHOWN_ROWS = 12

# rich's own template names fonts on a server, which a page that embeds the picture does not load
TEMPLATE = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: monospace; font-size: {char_height}px }}
.{unique_id}-title {{ font-family: sans-serif; font-size: 18px; font-weight: bold }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def draw(result: DemoResult) -> str:
    """The newest rows of the table, its sums, and the last question with its three answers."""
    console = Console(
        record=True,
        file=io.StringIO(),
        width=WIDTH_COLUMNS,
        height=SHOWN_ROWS + LINES_AROUND_ROWS,
        force_terminal=True,
        color_system="standard",
    )
    board = Board(console)
    board._rows.extend(result.rows)
    console.print(board.build_table())
    console.print(render_sums(result.rows))
    summary.print_question(console, result)
    return console.export_svg(title="om-proxy demo", code_format=TEMPLATE, unique_id="demo")


def main() -> None:
    logs.configure_log("off")
    result = asyncio.run(play_story(load_story(), Console(file=io.StringIO(), width=WIDTH_COLUMNS)))
    PICTURE.write_text(draw(result), encoding="utf-8")


if __name__ == "__main__":
    main()
