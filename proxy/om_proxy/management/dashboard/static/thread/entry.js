// One entry of the notes, with what it was made from.
import { formatCount, formatShare } from "../format.js";
import { Badge, Notice, Time } from "../parts/basics.js";
import { EntryActions } from "./editing.js";
import { NoteText } from "./notetext.js";
import { Provenance } from "./provenance.js";
import { html, useEffect, useRef, useState } from "../view.js";

const NAMES = { observation: "Notes", reflection: "Condensed notes", note: "Note of a branch" };

// The line of an entry that somebody looks for, as `selected` says it. null: it does not stand in the log.
export function selectNote(log, { note, line }) {
  return log.some((entry) => entry.id === note) ? { kind: "entry", id: note, line } : null;
}

export function NoteIsGone() {
  return html`<${Notice} kind="warn">The note that you look for does not stand here any more: it was condensed,
    edited, taken back or forgotten. Search again for its words.<//>`;
}

// `ask` opens a dialog; null: of an earlier state, which nobody changes.
export function EntryCard({ thread, entry, isChunk, selected, select, ask }) {
  const [isOpen, setOpen] = useState(false);
  const place = useRef(null);
  const kind = isChunk ? "chunk" : "entry";
  const isMarked = selected !== null && selected.kind === kind && selected.id === entry.id;
  const foundLine = isMarked ? (selected.line ?? null) : null; // it scrolls to itself
  useEffect(() => {
    if (isMarked && !foundLine && (selected.first === undefined || selected.isOneMessage)) place.current.scrollIntoView({ block: "start" });
  }, [isMarked, selected]);
  const tier = entry.kind === "reflection" ? "reflected" : isChunk ? "buffered" : "observed";
  return html`<article ref=${place} class=${`card entry ${tier} ${isMarked ? "marked" : ""}`}
    aria-label=${NAMES[entry.kind]}>
    <header class="entry-head">
      <${Badge} kind=${tier}>${NAMES[entry.kind]}<//>
      ${entry.edited && html`<${Badge}>edited<//>`}
      ${isChunk && entry.activates && html`<${Badge}>in the next prompt<//>`}
      <span class="muted small"><${Time} at=${entry.at} /></span>
      <${Shrunk} entry=${entry} />
    </header>
    <${EntryWords} entry=${entry} foundLine=${foundLine} />
    <div class="row entry-actions">
      <button class="quiet" aria-expanded=${isOpen} onClick=${() => setOpen(!isOpen)}>
        ${isOpen ? "Hide its messages" : "What was it made from?"}</button>
      ${ask && !entry.withdrawn && html`<${EntryActions} entry=${entry} isChunk=${isChunk} ask=${ask} />`}
    </div>
    ${isOpen && html`<${Provenance} thread=${thread} entry=${entry} isChunk=${isChunk}
      select=${select} />`}
  </article>`;
}

function Shrunk({ entry }) {
  const share = formatShare(entry.tokens / Math.max(1, entry.source_tokens));
  return html`<span class="number small" title=${`${share} of the tokens`}>
    ${formatCount(entry.source_tokens)} → ${formatCount(entry.tokens)} tokens</span>`;
}

function EntryWords({ entry, foundLine }) {
  if (entry.withdrawn) return html`<p class="muted">Withdrawn: the model sees none of it.</p>`;
  if (entry.text === null) return html`<p class="muted">Hidden: server.admin_reads is off.</p>`;
  return html`<${NoteText} text=${entry.text} found=${foundLine} />`;
}
