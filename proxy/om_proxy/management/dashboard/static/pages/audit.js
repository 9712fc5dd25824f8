// Who changed memories, and who read their text.
import { askJson } from "../api.js";
import { useAnswer } from "../data.js";
import { countOf, formatFull, formatMoment, nameOfTenant } from "../format.js";
import { Empty, Name, Notice, Spinner, Stale } from "../parts/basics.js";
import { PageHead } from "../parts/shell.js";
import { html, useEffect, useState } from "../view.js";

const PAGE_RECORDS = 100;
const REFRESH_S = 30;
const NOBODY = { items: [], cursor: undefined, error: null };
// the operation that a record names → what was done
const ACTIONS = {
  set_title: "Changed the title",
  set_thresholds: "Changed thresholds",
  list_messages: "Read messages",
  recall: "Looked up messages",
  search_messages: "Searched messages",
  show_message: "Read a message",
  list_entry_messages: "Read the messages behind a note",
  preview_text: "Looked at the next prompt",
  preview_request: "Looked at the prompt of a request",
  show_notes: "Read notes",
  show_entry: "Read what a note was made from",
  show_generation: "Compared states of notes",
  undo: "Took a change back",
  edit_entry: "Edited notes",
  withdraw_entry: "Withdrew notes",
  edit_chunk: "Edited ready notes",
  drop_chunk: "Dropped ready notes",
  observe: "Had notes written",
  reflect: "Had notes condensed",
  activate: "Made ready notes active",
  park: "Gave a thread up",
  revive: "Let a thread try again",
  list_pins: "Read pinned notes",
  add_pin: "Pinned a note",
  edit_pin: "Edited a pinned note",
  remove_pin: "Removed a pinned note",
  list_resource_pins: "Read pinned notes of a resource",
  add_resource_pin: "Pinned a note to a resource",
  edit_resource_pin: "Edited a pinned note of a resource",
  remove_resource_pin: "Removed a pinned note of a resource",
  forget_thread: "Forgot a thread",
  forget_resource: "Forgot a resource",
  forget_tenant: "Forgot a tenant",
  answer_events: "Read events",
  answer_thread_events: "Read events of a thread",
  export_memory: "Exported",
  import_export: "Imported an export",
  import_messages: "Imported messages",
  search_memory: "Searched messages, as an agent",
  read_messages: "Read messages, as an agent",
  list_threads: "Listed threads, as an agent",
  get_notes: "Read notes, as an agent",
  rewrite_tables: "Rewrote the store's tables",
};
const WHO = { admin: "Admin", cli: "Command line", local: "This machine, without a key", user: "A user of an application", retention: "Retention" };

export function AuditPage() {
  const first = useAnswer("/audit", { limit: PAGE_RECORDS }, { interval_s: REFRESH_S });
  const [more, setMore] = useState(NOBODY);
  useEffect(() => setMore(NOBODY), [first.data?.items[0]?.id]);
  const items = [...(first.data?.items ?? []), ...more.items];
  const cursor = more.cursor === undefined ? first.data?.cursor : more.cursor;
  const readOn = async () => {
    try {
      const page = await askJson("GET", "/audit", { query: { limit: PAGE_RECORDS, cursor } });
      setMore({ items: [...more.items, ...page.items], cursor: page.cursor, error: null });
    } catch (error) {
      setMore({ ...more, error });
    }
  };
  return html`<${PageHead} title="Audit" about="Who changed memories, and who read their text, of the last
    90 days. No record holds a name, a text or a key." />
    <${Stale} answer=${first} />
    ${!first.data && !first.error && html`<${Spinner} />`}
    ${first.data && items.length === 0 && html`<${Empty} title="No records yet"><p>A record is written
      when somebody changes a memory, and when somebody reads its text for the first time in an hour.</p><//>`}
    ${items.length > 0 && html`<${Records} items=${items} />`}
    ${more.error && html`<${Notice} kind="bad">${more.error.message}<//>`}
    ${cursor && html`<div><button onClick=${readOn}>Show older records</button></div>`}`;
}

function Records({ items }) {
  return html`<section class="card" aria-label="Records"><div class="scroll" tabindex="0" role="group" aria-label="Records">
    <table class="records stacked" role="table">
      <thead role="rowgroup"><tr role="row"><th scope="col" role="columnheader">What</th><th scope="col" role="columnheader">Who</th><th scope="col" role="columnheader">About</th>
        <th scope="col" role="columnheader">How much</th><th scope="col" role="columnheader" class="end">When</th></tr></thead>
      <tbody role="rowgroup">${items.map((record) => html`<tr key=${record.id} role="row">
        <th scope="row" role="rowheader">${ACTIONS[record.what] ?? record.what}</th>
        <td role="cell" data-column="Who">${WHO[record.who] ?? html`Key <code>${record.who.slice(0, 12)}</code>`}</td>
        <td role="cell" data-column="About">${record.label ? html`<code>${record.label}</code>` : html`<span class="muted">${record.tenant ? html`all of <${Name} text=${nameOfTenant(record.tenant)} length=${24} />` : "all threads"}</span>`}</td>
        <td role="cell" data-column="How much">${describeCounts(record.counts)}</td>
        <td role="cell" data-column="When" class="end number"><time datetime=${new Date(record.at * 1000).toISOString()}
          title=${formatFull(record.at)}>${formatMoment(record.at)}</time></td></tr>`)}</tbody>
    </table></div>
    <p class="hint">“About” is what the server's log calls a thread or a resource. A thread's page shows it.</p></section>`;
}

function describeCounts(counts) {
  const words = Object.entries(counts).filter(([, count]) => count > 0);
  return words.map(([name, count]) => countOf(count, name.replace(/s$/, "").replaceAll("_", " "))).join(", ");
}
