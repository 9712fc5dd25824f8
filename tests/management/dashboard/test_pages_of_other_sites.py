"""Pages of other sites in a browser, over a server whose upstream has a key of the operator's."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import async_playwright

from tests.e2e.raw_upstream import run_with_raw_upstream
from tests.management.dashboard.browser import list_launch_arguments, require_chromium
from tests.support.upstream_server import run_upstream_server, script_answer

ASK = """async (base) => {
  const body = JSON.stringify({model: "m", messages: [{role: "user", content: "hi"}]});
  const key = {"content-type": "application/json", authorization: "Bearer sk-made-up"};
  const chat = base + "/t/a/v1/chat/completions";
  const answers = [];
  for (const [url, options] of [
    [base + "/v1/models", {}],
    [base + "/v1/models", {mode: "no-cors"}],
    [chat, {method: "POST", mode: "no-cors", body}],
    [chat, {method: "POST", headers: key, body}],
  ]) answers.push(await fetch(url, options).then((got) => got.status, () => "refused"));
  return answers;
}"""


@pytest.mark.asyncio
async def test_no_page_of_another_site_spends_the_key(tmp_path: Path) -> None:
    """A page of another site, and one whose name resolves to this machine: nothing goes to the model
    server. A page of the machine itself is served."""
    executable = require_chromium()
    page_script = script_answer(b"<h1>page</h1>", b"Content-Type: text/html")
    arguments = [*list_launch_arguments(), "--host-resolver-rules=MAP *.example 127.0.0.1"]
    async with (
        run_with_raw_upstream(tmp_path, upstream=', api_key: "sk-operator"') as site,
        run_upstream_server(page_script) as other,
        async_playwright() as playwright,
    ):
        browser = await playwright.chromium.launch(executable_path=executable, args=arguments)
        other_port = other.base.rpartition(":")[2].partition("/")[0]
        proxy, rebound = f"http://127.0.0.1:{site.port}", f"http://rebound.example:{site.port}"
        page = await browser.new_page()
        await page.goto(f"http://evil.example:{other_port}/")
        assert await page.evaluate(ASK, proxy) == ["refused", 0, 0, "refused"]
        async with page.expect_navigation() as led:
            to = f"http://name:password@127.0.0.1:{site.port}/v1/models"
            await page.evaluate("to => { location = to }", to)
        assert (await led.value).status == 403
        await page.goto(f"{rebound}/")  # the page of the proxy itself, under another name
        assert await page.evaluate(ASK, rebound) == [403, 403, 403, 403]
        assert (site.server.seen, await site.threads()) == ([], 0)
        await page.goto(f"http://localhost:{site.port}/")
        assert await page.evaluate(ASK, f"http://localhost:{site.port}") == [200, 200, 200, 200]
        assert len(site.server.seen) == 4
        await browser.close()
