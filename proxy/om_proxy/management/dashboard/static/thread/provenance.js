// What an entry of the notes was made from: its messages, page by page.
import { askThread, threadPath, threadQuery } from "../api.js";
import { useAnswer } from "../data.js";
import { countOf } from "../format.js";
import { Notice, Spinner, Stale } from "../parts/basics.js";
import { Message, readMessage } from "./message.js";
import { html, useRef, useState } from "../view.js";

const PAGE_MESSAGES = 50;

// `select` marks them in the conversation; null: no conversation stands beside it.
export function Provenance({ thread, entry, isChunk, select }) {
  const chunk = isChunk ? true : null;
  const origin = useAnswer(threadPath(thread, `/observations/${entry.id}`), threadQuery(thread, { chunk }));
  const messages = useEntryMessages(thread, entry.id, chunk);
  return html`<div class="provenance">
    <${Stale} answer=${origin} />
    ${origin.data && html`<${Origin} ...${origin.data} select=${select} />`}
    <${Stale} answer=${messages} />
    ${!messages.data && !messages.error && html`<${Spinner} />`}
    ${messages.items.map(
      (line) => html`<${Message} key=${line.seq} message=${readMessage(line)} api=${line.api} number=${line.seq} at=${line.at} />`,
    )}
    ${messages.moreError && html`<${Notice} kind="bad">${messages.moreError.message}<//>`}
    ${messages.cursor && html`<div><button class="quiet" onClick=${messages.readOn}>Show more messages</button></div>`}
  </div>`;
}

function Origin({ entry, is_chunk: isChunk, covers, sources, complete, select }) {
  const show = () => select({ kind: isChunk ? "chunk" : "entry", id: entry.id, first: covers[0].first });
  return html`<p class="small muted">${covers.map(({ first, last }) => `Messages ${first}–${last}`).join(", ")}
      ${sources.length > 0 && `, through ${countOf(sources.length, "earlier entry", "earlier entries")}`}</p>
    ${select && covers.length > 0 &&
    html`<button class="quiet" onClick=${show}>Show them in the conversation</button>`}
    ${!complete && html`<${Notice}>Some of the entries in between are no longer stored.<//>`}`;
}

function useEntryMessages(thread, id, chunk) {
  const place = `/observations/${id}/messages`;
  const query = { chunk, limit: PAGE_MESSAGES };
  const first = useAnswer(threadPath(thread, place), threadQuery(thread, query));
  const [more, setMore] = useState({ items: [], cursor: undefined, error: null });
  const isReading = useRef(false);
  const items = [...(first.data?.items ?? []), ...more.items];
  const cursor = more.cursor === undefined ? first.data?.cursor : more.cursor;
  const readOn = async () => {
    if (isReading.current) return;
    isReading.current = true;
    try {
      const page = await askThread("GET", thread, place, { query: { ...query, cursor } });
      setMore({ items: [...more.items, ...page.items], cursor: page.cursor, error: null });
    } catch (error) {
      setMore({ ...more, error });
    } finally {
      isReading.current = false;
    }
  };
  return { ...first, items, cursor, readOn, moreError: more.error };
}
