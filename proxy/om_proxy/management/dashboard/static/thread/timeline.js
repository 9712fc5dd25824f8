// The conversation as it came in: each message with the notes that stand for it.
import { askThread } from "../api.js";
import { Notice, Spinner, Stale } from "../parts/basics.js";
import { Lines } from "./lines.js";
import { html, useCallback, useEffect, useMemo, useRef, useState } from "../view.js";

const PAGE_MESSAGES = 30;
const MAX_READ_MESSAGES = 1_000; // of one answer
// of covered messages shown above the first one that stands in the prompt word for word
const MESSAGES_BEFORE_TAIL = 20;
const MESSAGES_BEFORE_FOUND = 4; // what was said right before it
const READ_AHEAD = "1600px"; // below what is seen

// `coverage`: the newest message that notes stand for; the timeline begins a little before it.
export function Timeline({ thread, coverage, selected, select, tick }) {
  const [after, setAfter] = useState(Math.max(0, coverage - MESSAGES_BEFORE_TAIL));
  const messages = useMessages(thread, after, tick);
  const wanted = selected?.first ?? null;
  const before = selected?.isOneMessage ? MESSAGES_BEFORE_FOUND : 0;
  useEffect(() => {
    if (wanted !== null) setAfter(Math.max(0, wanted - 1 - before));
  }, [wanted]);
  if (!messages.pages) return html`<${Stale} answer=${messages} />${!messages.error && html`<${Spinner} />`}`;
  return html`<${Stale} answer=${messages} />
    ${after > 0 && html`<button class="quiet" onClick=${() => setAfter(Math.max(0, after - PAGE_MESSAGES))}>
      Show earlier messages</button>`}
    ${messages.pages.length === 0 && html`<p class="muted">No messages here.</p>`}
    ${messages.pages.map(
      (page) => html`<div class="page" key=${page[0].seq}>
        <${Lines} page=${page} thread=${thread} selected=${selected} select=${select} />
      </div>`,
    )}
    ${messages.moreError && html`<${Notice} kind="bad">${messages.moreError.message}<//>`}
    ${messages.cursor && html`<${ReadOn} readAt=${messages.at} readOn=${messages.readOn} />`}`;
}

// The button reads on by itself once somebody scrolls near it; `readAt`: when the last page came.
function ReadOn({ readAt, readOn }) {
  const button = useRef(null);
  useEffect(() => {
    const options = { rootMargin: READ_AHEAD, scrollMargin: READ_AHEAD };
    const watch = new IntersectionObserver((changes) => {
      if (!changes.some((change) => change.isIntersecting)) return;
      watch.disconnect();
      readOn();
    }, options);
    watch.observe(button.current);
    return () => watch.disconnect();
  }, [readAt]);
  return html`<button class="quiet" ref=${button} onClick=${readOn}>Show later messages</button>`;
}

// Read messages behind `after`, in pages. With another `tick`, all that are shown are read again, and
// pages that did not change stay the same values, so that they are not drawn anew.
function useMessages(thread, after, tick) {
  const [state, setState] = useState({ pages: null, cursor: null, error: null, moreError: null, at: null });
  const shown = useRef({ read: null, count: 0, cursor: null });
  const read = useCallback(
    async (limit, cursor) => {
      const query = { after, limit: Math.min(limit, MAX_READ_MESSAGES), live: "all", excerpt: true, cursor };
      return askThread("GET", thread, "/messages", { query });
    },
    [after, thread.thread],
  );
  const inTurn = useTurns(read);
  const load = useCallback(
    () =>
      inTurn(async (isWanted) => {
        const wanted = Math.max(PAGE_MESSAGES, shown.current.count);
        try {
          let { items, cursor } = await read(wanted);
          while (cursor && items.length < wanted) {
            const next = await read(wanted - items.length, cursor);
            items = items.concat(next.items);
            ({ cursor } = next);
          }
          if (!isWanted()) return;
          shown.current = { read, count: items.length, cursor };
          setState((last) => ({
            pages: splitPages(items, last.pages ?? []), cursor, error: null, moreError: null, at: Date.now() / 1000,
          }));
        } catch (error) {
          if (isWanted()) setState((last) => ({ ...last, error }));
        }
      }),
    [inTurn],
  );
  useEffect(() => {
    load();
  }, [load, tick]);
  const readOn = () =>
    inTurn(async (isWanted) => {
      const { count, cursor } = shown.current;
      if (shown.current.read !== read || !cursor) return;
      try {
        const next = await read(PAGE_MESSAGES, cursor);
        if (!isWanted()) return;
        shown.current = { read, count: count + next.items.length, cursor: next.cursor };
        setState((last) => ({
          ...last, pages: [...last.pages, ...splitPages(next.items, [])], cursor: next.cursor, moreError: null,
          at: Date.now() / 1000,
        }));
      } catch (moreError) {
        if (isWanted()) setState((last) => ({ ...last, moreError }));
      }
    });
  return { ...state, readOn, reload: load, data: state.pages };
}

// Return a function that does one piece of work after the other, since each builds on what the one
// before found. With another `read`, work that is under way or waits is not wanted any more.
function useTurns(read) {
  const newest = useRef(read);
  newest.current = read;
  return useMemo(() => {
    let last = Promise.resolve();
    const isWanted = () => newest.current === read;
    return (work) => {
      last = last.then(() => isWanted() && work(isWanted));
      return last;
    };
  }, [read]);
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
