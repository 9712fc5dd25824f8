"""Five hundred texts that pretend to be more than data, on every page: no script runs, no markup
appears, no text turns the text around it, and each is shown as what it is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, TimeoutError

from om_proxy.memory.escaping import PROMPT_TAGS
from om_proxy.settings.identity.naming import encode_name
from om_proxy.testing import loopback
from om_proxy.testing.scripted import OBSERVER, ScriptedServer
from tests.e2e.running import Running, run_with_scripted_models
from tests.management.dashboard.browser import Watched, open_page
from tests.support.hostile_texts import (
    encode_json,
    encode_path,
    find_terminal_commands,
    list_hostile_names,
    list_hostile_texts,
    list_megabyte_lines,
    list_utf8_texts,
)
from tests.support.long_forms import IS_LONG

HIGH = "observation: {message_tokens: 2000000, buffer_tokens: false}"
# whatever a text asks for would add another element or another attribute
OWN_ELEMENTS = frozenset(
    """
    HTML HEAD META TITLE LINK SCRIPT BODY DIV MAIN HEADER FOOTER NAV SECTION ARTICLE FIGURE FIGCAPTION
    H1 H2 H3 P UL OL LI DL DT DD A SPAN STRONG BDI CODE TIME BUTTON FORM LABEL INPUT SELECT OPTION
    TEXTAREA DETAILS SUMMARY DIALOG MARK TABLE THEAD TBODY TR TH TD
    """.split()  # noqa: SIM905 — a list of strings would be ten lines
)
_LIST_FOREIGN = """(own) => [...document.querySelectorAll("*")]
  .filter((element) => !own.includes(element.tagName) ||
    [...element.attributes].some(({ name }) => name.startsWith("on")) ||
    (element.tagName === "SCRIPT" && element.parentElement !== document.head))
  .map((element) => element.outerHTML.slice(0, 200))"""
# each text of the page within its own isolation, so that it turns nothing around it
_LIST_TURNING = """() => [...document.querySelectorAll(".text, .note-words, .note-day, .name")]
  .filter((element) => element.dir !== "auto" ||
    !["isolate", "plaintext", "isolate-override"].includes(getComputedStyle(element).unicodeBidi))
  .map((element) => element.outerHTML.slice(0, 200))"""


# the conversation reads on by itself wherever its end comes near
_READ_ON = """(count) => {
  const column = document.querySelector(".column-body");
  column.scrollTop = column.scrollHeight;
  return document.querySelectorAll(".line-box").length >= count;
}"""


class HostileObserver(ScriptedServer):
    """A model server whose observer writes the hostile texts into its notes, some in each."""

    def choose_answer(self, model: str, messages: Sequence[Any], fault: Any) -> Mapping[str, Any]:
        if model != OBSERVER:
            return super().choose_answer(model, messages, fault)
        number = len(self.requests_to(OBSERVER))
        lines = [
            f"* 🔴 (09:0{number % 10}) User said: {text}"
            for text in HOSTILE_NOTES[number % 40 :: 40]
        ]
        notes = "Date: May 1, 2026\n" + "\n".join(lines)
        return {"role": "assistant", "content": f"<observations>\n{notes}\n</observations>"}


class PatientServer(ScriptedServer):
    """A model server that takes any body, also one with halves of characters."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        await loopback.read_body(receive)
        message = {"role": "assistant", "content": "Read."}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        await loopback.send_json(send, 200, {"object": "chat.completion", "choices": [choice]})


HOSTILE_TEXTS = list_utf8_texts()
# an observer's answer that holds a tag of ours is another answer
HOSTILE_NOTES = [
    text for text in HOSTILE_TEXTS if not any(tag in text.lower() for tag in PROMPT_TAGS)
]


pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def run(tmp_path: Path) -> AsyncIterator[Running]:
    async with run_with_scripted_models(tmp_path, HIGH, models=PatientServer()) as running:
        yield running


async def send(
    run: Running, thread: str, messages: list[dict[str, Any]], resource: str = ""
) -> None:
    """Send one chat request without a key, so that a visitor without one sees the thread."""
    body = {"model": "scripted-actor", "messages": messages}
    headers = {"x-om-thread": encode_name(thread), "content-type": "application/json"}
    if resource:
        headers["x-om-resource"] = encode_name(resource)
    answer = await run.http.post(
        f"{run.base}/v1/chat/completions", content=encode_json(body), headers=headers
    )
    assert answer.status_code == 200, answer.text


async def check_inert(watched: Watched) -> None:
    """Fail for markup that came out of a text, and for a text that turns others."""
    page = watched.page
    assert await page.evaluate(_LIST_FOREIGN, sorted(OWN_ELEMENTS)) == []
    assert await page.evaluate(_LIST_TURNING) == []
    assert find_terminal_commands(await page.inner_text("body")) == []
    await watched.check_quiet()


async def show(page: Page, texts: list[str]) -> list[str]:
    """Return the texts as the page's own module shows them."""
    folder = await page.evaluate("document.querySelector('script[type=module]').src")
    code = """async ([folder, texts]) => {
      const { showUnseen, cutText } = await import(new URL("format.js", folder).href);
      return texts.map((text) => showUnseen(cutText(text, 20_000)));
    }"""
    return await page.evaluate(code, [folder, texts])


async def test_messages_are_shown_as_they_are(run: Running, browser: Browser) -> None:
    roles = ("user", "assistant")
    hostile = [*list_hostile_texts(), *list_megabyte_lines()]
    messages = [{"role": roles[number % 2], "content": text} for number, text in enumerate(hostile)]
    await send(run, "hostile", messages)
    async with open_page(browser, run.base) as watched:
        page = watched.page
        await watched.open("#/thread/local/hostile/hostile")
        await page.locator("summary", has_text="Messages in the prompt").click()
        await page.locator(".part .message .text").first.wait_for()
        await page.locator(".part").get_by_role("button", name="earlier message").click()
        url = f"{run.base}/om/v1/threads/hostile/context?text=Where%20were%20we%3F"
        preview = (await run.http.get(url)).json()
        # with a reply and a question more, and without two replies of blanks alone
        assert len(preview["messages"]) == len(hostile)
        await page.locator(".part .message .text").nth(len(hostile) - 1).wait_for()
        await page.wait_for_function(_READ_ON, arg=len(hostile) + 1)
        assert await page.locator(".line-box").count() == len(hostile) + 1
        expected = await show(page, [str(m["content"]) for m in preview["messages"]])
        shown = await page.locator(".part .message .text").all_text_contents()
        assert shown == expected
        assert sum(len(text) >= 10_000 for text in shown) == 5
        await check_inert(watched)


async def test_search_results_are_shown_as_they_are(run: Running, browser: Browser) -> None:
    """Cut around the words that were found, which stand in elements of the page's own."""
    hostile = [f"{text} quorum {text}" for text in list_hostile_texts()[::5]]
    messages = [{"role": "user", "content": text} for text in hostile]
    await send(run, "<img src=x>", messages, resource="<script>alert(1)</script>")
    async with open_page(browser, run.base) as watched:
        page = watched.page
        await watched.open("#/search?q=quorum")
        await page.get_by_role("button", name="Show up to 100").click()
        await page.locator(".result").nth(99).wait_for()
        answer = await run.http.get(f"{run.base}/om/v1/search?q=quorum&limit=100")
        expected = await show(page, [item["excerpt"] for item in answer.json()["items"]])
        assert await page.locator(".result .text").all_text_contents() == expected
        assert set(await page.locator("mark").all_text_contents()) >= {"quorum"}
        assert await page.locator("mark").count() >= 100
        await check_inert(watched)
        await page.goto(f"{run.base}/om/#/search?q={encode_path('<script>alert(1)</script>')}")
        await page.locator(".result, .empty").first.wait_for()
        await check_inert(watched)


async def test_notes_are_shown_as_they_are(tmp_path: Path, browser: Browser) -> None:
    """What the observer wrote reaches the page, but for what the proxy itself does not keep."""
    low = "observation: {message_tokens: 1200, buffer_tokens: 300, block_timeout: 300ms}"
    async with run_with_scripted_models(tmp_path, low, models=HostileObserver()) as run:
        chat = run.chat("noted")
        del chat.headers["authorization"]
        for number in range(40):
            await chat.say(f"This is point {number}. {'And so on it goes. ' * 20}")
            await run.app.background.wait_idle()
        notes = (await run.http.get(f"{run.base}/om/v1/threads/noted/observations")).json()
        entries = [*notes["log"], *notes["chunks"]]
        assert len(entries) > 5
        async with open_page(browser, run.base) as watched:
            page = watched.page
            await watched.open("#/thread/local/noted/noted")
            await page.get_by_role("article").nth(len(entries) - 1).wait_for()
            while await page.get_by_role("button", name="more lines").count():
                await page.get_by_role("button", name="more lines").first.click()
            words = "".join(await page.locator(".note-words, .note-day").all_text_contents())
            lines = [line for entry in entries for line in entry["text"].split("\n")]
            for line in await show(page, [line for line in lines if "User said: " in line]):
                assert line.rpartition("User said: ")[2].strip() in words
            await check_inert(watched)
            await check_found_notes(run, watched)


async def check_found_notes(run: Running, watched: Watched) -> None:
    """Search the notes for a word that each line has, and open one of them."""
    page = watched.page
    answer = await run.http.get(f"{run.base}/om/v1/search?q=user&in=notes&limit=100")
    found = [note["line"] for note in answer.json()["notes"]]
    assert len(found) == 100
    await page.goto(f"{run.base}/om/#/search?q=user&in=notes")
    await page.get_by_role("button", name="Show up to 100").click()
    await page.locator(".result").nth(99).wait_for()
    shown = await page.locator(".result .text").all_text_contents()
    for line, text in zip(await show(page, found), shown, strict=True):
        assert line.endswith(text)
        assert len(line) - len(text) < len("* 🔴 (09:00) ...")
    assert await page.locator("mark").count() >= 100
    await check_inert(watched)
    await page.locator(".result").nth(50).get_by_role("link").click()
    await page.locator(".found-line").wait_for()
    await check_inert(watched)


async def test_names_and_titles_are_shown_as_they_are(run: Running, browser: Browser) -> None:
    names = list_hostile_names()
    hello = [{"role": "user", "content": "Hello."}]
    for number, name in enumerate(names):
        await send(run, f"title-{number}" if number % 2 else name, hello, resource=name)
    threads = (await run.http.get(f"{run.base}/om/v1/threads?limit=1000")).json()["items"]
    assert len(threads) > 100
    titles = iter(text for text in HOSTILE_TEXTS if text.strip() and len(text) < 100)
    for line in threads[::2]:
        url = f"{run.base}/om/v1/threads/{encode_path(line['thread'])}"
        params = {"resource": line["resource"]}
        await run.http.patch(url, params=params, json={"title": next(titles)})
    async with open_page(browser, run.base) as watched:
        page = watched.page
        await watched.open("#/threads")
        while (count := await page.locator(".line").count()) < len(threads):
            with suppress(TimeoutError):  # the list is renewed meanwhile
                await page.get_by_role("button", name="Show more threads").click(timeout=3_000)
            await page.wait_for_function(
                "(count) => document.querySelectorAll('.line').length > count", arg=count
            )
        assert await page.locator(".line").count() == len(threads)
        await check_inert(watched)
        links = await page.locator(".line").evaluate_all("(lines) => lines.map((a) => a.href)")
        places = [link.replace("#/thread/", "#/resource/").rpartition("/")[0] for link in links]
        opened = 12 if IS_LONG else 4
        for link in (*links[:: len(links) // opened], *places[:: 2 * len(places) // opened]):
            await page.goto(link)
            await page.wait_for_selector(".windows, .line, .empty")
            assert await page.locator(".windows, .line").count() >= 1, link
            await check_inert(watched)
