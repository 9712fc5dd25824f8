// The notes of a thread: the log, what stands ready, and what waits to replace notes.
import { threadPath, threadQuery } from "../api.js";
import { useAnswer } from "../data.js";
import { countOf, formatCount } from "../format.js";
import { Notice, Spinner, Stale, Text } from "../parts/basics.js";
import { NotesDiff } from "./diff.js";
import { NoteDialog } from "./editing.js";
import { EntryCard } from "./entry.js";
import { GenerationChoice } from "./generations.js";
import { Pins } from "./pins.js";
import { NoteText } from "./notetext.js";
import { html, useState } from "../view.js";

export function MemoryColumn({ thread, status, notes, selected, select, changed, tick }) {
  const [chosen, setChosen] = useState(null); // the number of an earlier state; null: now
  const [isDiff, setDiff] = useState(false);
  const place = chosen === null ? null : threadPath(thread, "/observations");
  const older = useAnswer(place, threadQuery(thread, { generation: chosen }));
  const states = useAnswer(threadPath(thread, "/generations"), threadQuery(thread), { tick });
  const list = states.data?.items ?? [];
  const now = list.find((line) => line.is_current);
  const answer = chosen === null ? notes : older;
  return html`<${Stale} answer=${answer} />
    <${GenerationChoice} list=${list} chosen=${chosen} choose=${setChosen} isDiff=${isDiff}
      setDiff=${setDiff} />
    ${chosen !== null && !isDiff && html`<${Notice}>You look at an earlier state. Nothing of it is in the
      prompt now.<//>`}
    ${isDiff && now && chosen !== null
      ? html`<${NotesDiff} thread=${thread} earlier=${chosen} later=${now.number} tick=${tick} />`
      : html`${!answer.data && !answer.error && html`<${Spinner} />`}
        ${answer.data && html`<${Log} thread=${thread} status=${status} notes=${answer.data}
          selected=${selected} select=${select} changed=${changed} />`}`}`;
}

function Log({ thread, status, notes, selected, select, changed }) {
  const [dialog, setDialog] = useState(null);
  const { log, chunks, reflection, task, suggestion, version, is_current: isCurrent } = notes;
  const isEmpty = !log.length && !chunks.length && !reflection;
  const ask = (kind, entry, isChunk) => setDialog({ kind, entry, isChunk, version });
  const close = () => setDialog(null);
  const done = () => {
    close();
    changed();
  };
  const card = (entry, isChunk) => html`<${EntryCard} key=${`${isChunk}${entry.id}`} thread=${thread}
    entry=${entry} isChunk=${isChunk} selected=${selected} select=${select} ask=${isCurrent ? ask : null} />`;
  return html`
    ${isCurrent && html`<${Pins} thread=${thread} pins=${notes.pins} version=${version} changed=${changed} />`}
    ${isEmpty && html`<${NoNotes} status=${status} />`}
    ${task && html`<${Hint} name="Current task" text=${task} />`}
    ${suggestion && html`<${Hint} name="How to go on" text=${suggestion} />`}
    ${log.map((entry) => card(entry, false))}
    ${chunks.length > 0 && html`<h3>Ready notes</h3>`}
    ${chunks.map((chunk) => card(chunk, true))}
    ${reflection && html`<h3>Condensed, waiting to replace ${countOf(reflection.sources.length, "entry", "entries")}</h3>
      <article class="card entry reflected"><${NoteText} text=${reflection.text ?? ""} /></article>`}
    ${dialog && html`<${NoteDialog} thread=${thread} shown=${dialog} refresh=${changed} done=${done}
      close=${close} />`}`;
}

function NoNotes({ status }) {
  const missing = Math.max(0, status.messages.threshold - status.messages.pending_tokens);
  return html`<div class="empty"><h3>No notes yet</h3>
    <p>The model still gets every message. ${missing > 0 &&
    html`After about ${formatCount(missing)} more tokens of conversation, notes take the place of
      the oldest ones.`}</p></div>`;
}

function Hint({ name, text }) {
  return html`<div class="card hint-card"><h3>${name}</h3><${Text} text=${text} /></div>`;
}
