// The conversation as it came in: each message with the notes that stand for it.
import { askThread } from "../api.js";
import { Notice, Spinner, Stale } from "../parts/basics.js";
import { Lines } from "./lines.js";
import { html, useCallback, useEffect, useRef, useState } from "../view.js";

const PAGE_MESSAGES = 60;
const MAX_READ_MESSAGES = 1_000; // of one answer
// of covered messages shown above the first one that stands in the prompt word for word
const MESSAGES_BEFORE_TAIL = 20;
const READ_AHEAD = "800px"; // below what is seen

// `coverage`: the newest message that notes stand for; the timeline begins a little before it.
export function Timeline({ thread, coverage, selected, select, tick }) {
  const [after, setAfter] = useState(Math.max(0, coverage - MESSAGES_BEFORE_TAIL));
  const messages = useMessages(thread, after, tick);
  const wanted = selected?.first ?? null;
  useEffect(() => {
    if (wanted !== null) setAfter(Math.max(0, wanted - 1));
  }, [wanted]);
  if (!messages.pages) return html`<${Stale} answer=${messages} />${!messages.error && html`<${Spinner} />`}`;
  return html`<${Stale} answer=${messages} />
    ${after > 0 && html`<button class="quiet" onClick=${() => setAfter(Math.max(0, after - PAGE_MESSAGES))}>
      Show earlier messages</button>`}
    ${messages.pages.length === 0 && html`<p class="muted">No messages here.</p>`}
    ${messages.pages.map(
      (page) => html`<${Lines} key=${page[0].seq} page=${page} thread=${thread} selected=${selected}
        select=${select} />`,
    )}
    ${messages.moreError && html`<${Notice} kind="bad">${messages.moreError.message}<//>`}
    ${messages.cursor && html`<${ReadOn} key=${messages.cursor} readOn=${messages.readOn} />`}`;
}

// The button reads on by itself once somebody scrolls near it.
function ReadOn({ readOn }) {
  const button = useRef(null);
  useEffect(() => {
    const options = { rootMargin: READ_AHEAD, scrollMargin: READ_AHEAD };
    const watch = new IntersectionObserver(([entry]) => {
      if (!entry.isIntersecting) return;
      watch.disconnect();
      readOn();
    }, options);
    watch.observe(button.current);
    return () => watch.disconnect();
  }, []);
  return html`<button class="quiet" ref=${button} onClick=${readOn}>Show later messages</button>`;
}

// Read messages behind `after`, in pages. With another `tick`, all that are shown are read again, and
// pages that did not change stay the same values, so that they are not drawn anew.
function useMessages(thread, after, tick) {
  const [state, setState] = useState({ pages: null, cursor: null, error: null, moreError: null, at: null });
  const current = useRef(0); // the newest reading; what an older one finds is dropped
  const count = useRef(0);
  const read = useCallback(
    async (limit, cursor) => {
      const query = { after, limit: Math.min(limit, MAX_READ_MESSAGES), live: "all", excerpt: true, cursor };
      return askThread("GET", thread, "/messages", { query });
    },
    [after, thread.thread],
  );
  const load = useCallback(async () => {
    const number = (current.current += 1);
    const wanted = Math.max(PAGE_MESSAGES, count.current);
    try {
      let { items, cursor } = await read(wanted);
      while (cursor && items.length < wanted) {
        const next = await read(wanted - items.length, cursor);
        items = items.concat(next.items);
        ({ cursor } = next);
      }
      if (number !== current.current) return;
      count.current = items.length;
      setState((last) => ({
        pages: splitPages(items, last.pages ?? []), cursor, error: null, moreError: null, at: Date.now() / 1000,
      }));
    } catch (error) {
      if (number === current.current) setState((last) => ({ ...last, error }));
    }
  }, [read]);
  useEffect(() => {
    load();
  }, [load, tick]);
  const readOn = async () => {
    const number = (current.current += 1);
    try {
      const next = await read(PAGE_MESSAGES, state.cursor);
      if (number !== current.current) return;
      count.current += next.items.length;
      setState((last) => ({
        ...last, pages: [...last.pages, ...splitPages(next.items, [])], cursor: next.cursor, moreError: null,
      }));
    } catch (moreError) {
      setState((last) => ({ ...last, moreError }));
    }
  };
  return { ...state, readOn, reload: load, data: state.pages };
}

function splitPages(items, before) {
  const known = new Map(before.map((page) => [page[0].seq, page]));
  const pages = [];
  for (let at = 0; at < items.length; at += PAGE_MESSAGES) {
    const page = items.slice(at, at + PAGE_MESSAGES);
    const old = known.get(page[0].seq);
    pages.push(old && JSON.stringify(old) === JSON.stringify(page) ? old : page);
  }
  return pages;
}
