// One thread: its windows, its memory, and what the model sees now.
import { askThread, threadPath, threadQuery } from "../api.js";
import { explainCause } from "../causes.js";
import { useAnswer } from "../data.js";
import { countOf, formatClock, formatCount, nameOfTenant, titleOf } from "../format.js";
import { Gauge, Name, Notice, Sentence, Spinner, Stale, Time } from "../parts/basics.js";
import { linkTo, readNumber } from "../route.js";
import { PageHead } from "../parts/shell.js";
import { BARS, NotHere } from "../parts/threads.js";
import { Columns } from "../parts/columns.js";
import { ThreadActions } from "../thread/actions.js";
import { useChange } from "../thread/change.js";
import { ContextColumn } from "../thread/context.js";
import { NoteIsGone, selectNote } from "../thread/entry.js";
import { ThreadLedger } from "../thread/ledger.js";
import { selectMessage } from "../thread/lines.js";
import { MemoryColumn } from "../thread/memory.js";
import { Timeline } from "../thread/timeline.js";
import { html, useEffect, useState } from "../view.js";

const REFRESH_S = 5;
const CONVERSATION = "Conversation";
const MEMORY = "Memory";

export function ThreadPage({ place, who, signIn }) {
  const [, tenant, resource, thread] = place.steps;
  const key = { tenant, resource, thread };
  const answer = useAnswer(threadPath(key), threadQuery(key), {
    interval_s: REFRESH_S,
  });
  const [changes, setChanges] = useState(0);
  const changed = () => {
    setChanges(changes + 1);
    answer.reload();
  };
  const status = answer.data;
  if (answer.error?.status === 404) {
    return html`<${NotHere} title="No such thread" who=${who} signIn=${signIn} />`;
  }
  if (!status) {
    return html`<${Stale} answer=${answer} />${!answer.error && html`<${Spinner} />`}`;
  }
  return html`<${PageHead} title=${html`<${Name} text=${titleOf(status)} />`}
      about=${html`<${AboutThread} status=${status} who=${who} />`}>
      <${ThreadActions} thread=${key} status=${status} changed=${changed} />
    <//>
    <${Stale} answer=${answer} />
    <${Failures} thread=${key} status=${status} changed=${changed} />
    <${Windows} status=${status} />
    <${ThreadLedger} ledger=${status.ledger} scope=${status.scope} />
    <${ThreadColumns} thread=${key} status=${status} tick=${`${status.version} ${changes}`}
      changed=${changed} wanted=${readWanted(place.query)} />`;
}

// The message, or the line of a note, that the address names.
function readWanted(query) {
  const [message, note, line] = ["message", "note", "line"].map((name) => readNumber(query, name));
  return { message, note, line };
}

// The conversation, its notes and the next prompt. What is chosen in one is marked in the others.
function ThreadColumns({ thread, status, tick, changed, wanted }) {
  const [selected, setSelected] = useState(null);
  const [shown, setShown] = useState(CONVERSATION);
  const notes = useAnswer(threadPath(thread, "/observations"), threadQuery(thread), { tick });
  const select = (chosen) => {
    setSelected(chosen);
    setShown(chosen.first === undefined ? MEMORY : CONVERSATION);
  };
  const found = useAnswer(wanted.message === null ? null : threadPath(thread, `/messages/${wanted.message}`), threadQuery(thread));
  useEffect(() => {
    if (found.data) select(selectMessage(found.data.message));
  }, [found.data]);
  const [isNoteGone, setNoteGone] = useState(false);
  const hasNotes = notes.data !== null;
  useEffect(() => {
    if (!hasNotes || wanted.note === null) return setNoteGone(false);
    // of a thread that shares a log, entries have other ids
    const note = notes.data.scope === "thread" ? selectNote(notes.data.log, wanted) : null;
    setNoteGone(note === null);
    if (note) select(note);
  }, [hasNotes, wanted.note, wanted.line]);
  const shared = { thread, selected, select, tick };
  const columns = [
    {
      name: CONVERSATION,
      about: "Every message, and the notes that stand for it.",
      body: notes.data && html`<${Timeline} ...${shared} coverage=${notes.data.coverage} />`,
    },
    {
      name: MEMORY,
      about: "The notes that stand for old messages.",
      body: html`<${MemoryColumn} ...${shared} status=${status} notes=${notes} changed=${changed} />`,
    },
    {
      name: "What the model sees",
      short: "Next prompt",
      about: "The next prompt, part by part.",
      body: html`<${ContextColumn} thread=${thread} tick=${tick} />`,
    },
  ];
  return html`${found.error?.status === 404
      ? html`<${Notice} kind="warn">There is no message ${wanted.message} in this thread.<//>`
      : html`<${Stale} answer=${found} />`}
    ${isNoteGone && html`<${NoteIsGone} />`}
    <${Columns} columns=${columns} shown=${shown} onShow=${setShown} />`;
}

function linkToSearch({ tenant, resource, thread }) {
  return `#/search?${new URLSearchParams({ tenant, resource, thread })}`;
}

function AboutThread({ status, who }) {
  const parts = [
    titleOf(status) !== status.thread && html`<${Name} text=${status.thread} />`,
    status.resource !== status.thread && html`of <a href=${linkTo("resource", status.tenant, status.resource)}><${Name} text=${status.resource} /></a>`,
    who.isAdmin && status.tenant !== "local" && html`key <${Name} text=${nameOfTenant(status.tenant)} />`,
    countOf(status.messages.count, "message"),
    html`<code>${status.label}</code> in the server's log`,
    html`<a href=${linkToSearch(status)}>Search it</a>`,
  ].filter(Boolean);
  return parts.map((part, index) => html`${index > 0 && " · "}${part}`);
}

function Failures({ thread, status, changed }) {
  const revival = useChange(() => askThread("POST", thread, "/revive", { body: {} }), changed);
  if (status.failures === 0 && !status.parked) return null;
  const { title, advice } = explainCause(status.failure_cause);
  const next = status.retry_at && html` The next try is at ${formatClock(status.retry_at)}.`;
  return html`<${Notice} kind=${status.parked ? "bad" : "warn"}>
    <p><strong>${status.parked ? "Memory has given this thread up. " : ""}${title}</strong>,
      ${" "}${countOf(status.failures, "time")} in a row.${!status.parked && next} Every message still
      reaches the model.</p>
    <p><bdi><${Sentence} text=${advice} /></bdi></p>
    ${status.parked && html`<p><button disabled=${revival.isBusy} onClick=${() => revival.send()}>Try again</button></p>`}
    ${revival.error && html`<p>${revival.error.message}</p>`}<//>`;
}

function Windows({ status }) {
  const ready = status.chunks.length;
  const { messages, observations } = status;
  const readyWords = ready > 0 ? ` ${countOf(ready, "batch of notes stands", "batches of notes stand")} ready.` : "";
  const { reflections, count } = observations;
  const condensedWords = reflections > 0 ? ` ${formatCount(reflections)} of ${countOf(count, "entry is", "entries are")} condensed already.` : "";
  return html`<section class="windows" aria-label="How full the two bars are">
    <${Gauge} label=${BARS.messages} value=${messages.pending_tokens} limit=${messages.threshold} kind="raw"
      hint=${`At ${formatCount(messages.threshold)}, notes take the place of the oldest.${readyWords}`} />
    <${Gauge} label=${BARS.notes} value=${observations.tokens} limit=${observations.threshold} kind="observed"
      hint=${`At ${formatCount(observations.threshold)}, old notes are condensed: written anew, shorter.${condensedWords}`} />
  </section>`;
}
