// One resource: the log that its threads share, and what each of them adds to it.
import { askJson, resourcePath, resourceQuery, threadPath, threadQuery } from "../api.js";
import { explainCause } from "../causes.js";
import { useAnswer } from "../data.js";
import { countOf, formatCount, titleOf } from "../format.js";
import { Badge, Name, Notice, Sentence, Spinner, Stale } from "../parts/basics.js";
import { ExportButton } from "../parts/export.js";
import { ForgetDialog } from "../parts/forget.js";
import { PageHead } from "../parts/shell.js";
import { NotHere, ThreadList } from "../parts/threads.js";
import { readNumber } from "../route.js";
import { EntryCard, NoteIsGone, selectNote } from "../thread/entry.js";
import { html, useMemo, useState } from "../view.js";

const REFRESH_S = 10;
const MAX_THREADS = 100;

export function ResourcePage({ place, who, signIn }) {
  const [, tenant, resource] = place.steps;
  const key = { tenant, resource };
  const answer = useAnswer(resourcePath(key), resourceQuery(key), { interval_s: REFRESH_S });
  const query = { tenant, resource, order: "recent", limit: MAX_THREADS };
  const threads = useAnswer("/threads", query, { interval_s: REFRESH_S });
  if (answer.error?.status === 404) {
    return html`<${NotHere} title="No such resource" who=${who} signIn=${signIn} />`;
  }
  if (!answer.data || !threads.data) {
    return html`<${Stale} answer=${answer} /><${Stale} answer=${threads} /><${Spinner} />`;
  }
  const status = answer.data;
  const log = status.shared_log;
  const about = `${countOf(status.threads, "thread")}${status.has_more_threads ? " or more" : ""}` +
    (log ? `, one shared log of ${formatCount(log.tokens)} tokens` : status.threads === 1 ? ", with notes of its own" : ", each with notes of its own");
  return html`<${PageHead} title=${html`<${Name} text=${resource} />`} about=${about}>
      <${ResourceActions} resource=${key} status=${status} />
    <//>
    <${Stale} answer=${answer} />
    ${log && log.failures > 0 && html`<${Notice} kind=${log.parked ? "bad" : "warn"}>The shared log could
      not be kept up, ${countOf(log.failures, "time")} in a row. ${explainCause(log.failure_cause).title}.
      ${" "}<${Sentence} text=${explainCause(log.failure_cause).advice} /> Every message still reaches the model.<//>`}
    <section aria-label="Threads"><h2>Threads</h2>
      <${ThreadList} items=${threads.data.items} label="Threads" ofOne=${true} />
    </section>
    ${log && threads.data.items.length > 0 && html`<${SharedLog} threads=${threads.data.items}
      note=${readNumber(place.query, "note")} line=${readNumber(place.query, "line")} />`}`;
}

function ResourceActions({ resource: { tenant, resource }, status }) {
  const [isForgetting, setForgetting] = useState(false);
  const key = { tenant, resource };
  const count = `${countOf(status.threads, "thread")}${status.has_more_threads ? " or more" : ""}`;
  return html`<${ExportButton} name=${resource} query=${key} />
    <button class="danger" onClick=${() => setForgetting(true)}>Forget</button>
    ${isForgetting && html`<${ForgetDialog} title="Forget this resource" name=${resource}
      close=${() => setForgetting(false)}
      forget=${() => askJson("DELETE", resourcePath(key), { query: resourceQuery(key) })}>
      All that is stored of it is removed: ${count} with every message and note, and the log that they
      share. This cannot be undone. Backups are not touched.<//>`}`;
}

// `note` and `line`: what the address names; null: nothing.
function SharedLog({ threads, note, line }) {
  const [first] = threads;
  const notes = useAnswer(threadPath(first, "/observations"), threadQuery(first), { interval_s: REFRESH_S });
  const log = notes.data?.log ?? [];
  const isThere = log.some((entry) => entry.id === note);
  const selected = useMemo(() => selectNote(log, { note, line }), [isThere, note, line]);
  if (!notes.data) return html`<${Stale} answer=${notes} />${!notes.error && html`<${Spinner} />`}`;
  return html`${note !== null && !isThere && html`<${NoteIsGone} />`}<div class="pair">
    <section aria-label="The shared log"><h2>The shared log</h2>
      ${log.length === 0 && html`<p class="muted card">No notes yet.</p>`}
      ${log.map((entry) => html`<${EntryCard} key=${entry.id} thread=${first} entry=${entry}
        isChunk=${false} selected=${selected} select=${null} ask=${null} />`)}
    </section>
    <${Contributions} log=${log} threads=${threads} />
  </div>`;
}

// What each thread adds: the entries about it. An entry about several counts for each.
function Contributions({ log, threads }) {
  const lines = threads.map((line) => {
    const entries = log.filter((entry) => entry.about.includes(line.label));
    return { line, count: entries.length, tokens: entries.reduce((sum, { tokens }) => sum + tokens, 0) };
  });
  return html`<section class="card" aria-label="What each thread adds"><h2>What each thread adds</h2>
    <div class="scroll" tabindex="0" role="group" aria-label="What each thread adds"><table>
      <thead><tr><th scope="col">Thread</th><th scope="col" class="end">Entries about it</th>
        <th scope="col" class="end">Their tokens</th></tr></thead>
      <tbody>${lines.map(
        ({ line, count, tokens }) => html`<tr><th scope="row"><${Name} text=${titleOf(line)} />
          ${titleOf(line) !== line.thread && html` <span class="muted small"><${Name} text=${line.thread} length=${40} /></span>`}
          ${line.parked && html` <${Badge} kind="bad">given up<//>`}</th>
          <td class="end number">${formatCount(count)}</td><td class="end number">${formatCount(tokens)}</td></tr>`,
      )}</tbody>
    </table></div>
  </section>`;
}
