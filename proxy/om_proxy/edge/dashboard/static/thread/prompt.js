// The next prompt: its size, what is due before it, and its parts.
import { countOf, formatCount, formatShare } from "../format.js";
import { ShareBar, Text } from "../parts/basics.js";
import { Message } from "./message.js";
import { html, useState } from "../view.js";

// kind of a part → [its name, its colour]
const PARTS = {
  instructions: ["Your client's instructions", "client"],
  notes: ["How to read the notes", "rules"],
  pins: ["Pinned notes", "pinned"],
  observations: ["Notes", "observed"],
  others: ["Other conversations", "reflected"],
  hints: ["Current task", "buffered"],
  hint: ["How to go on", "buffered"],
  tail: ["Messages word for word", "raw"],
};
const SHOWN_MESSAGES = 60; // of the tail at first: the newest

export function Prompt({ preview }) {
  const parts = preview.parts.filter((part) => part.tokens > 0);
  const total = parts.reduce((sum, part) => sum + part.tokens, 0);
  return html`
    <p class="headline"><span class="figure">${formatCount(preview.tokens_sent ?? 0)}</span> tokens
      go to the model</p>
    <${ShareBar} parts=${parts.map((part) => ({ ...nameOf(part), value: part.tokens }))} />
    <${Due} decisions=${preview.decisions} />
    ${parts.map(
      (part, index) => html`<${PartCard} key=${index} part=${part} preview=${preview}
        total=${total} />`,
    )}`;
}

const WORK = {
  activate: (due) => `${countOf(due.count, "batch of notes takes", "batches of notes take")} their messages' place first.`,
  swap: () => "Condensed notes take the place of older ones first.",
  observe: () => "The request would wait until notes are written.",
  reflect: () => "The request would wait until notes are condensed.",
};

function Due({ decisions }) {
  if (!decisions.length) return null;
  return html`<ul class="due">
    ${decisions.map((due) => html`<li>${WORK[due.kind]?.(due) ?? due.kind}</li>`)}
  </ul>`;
}

function nameOf(part) {
  const [label, kind] = PARTS[part.kind] ?? [part.kind, "rules"];
  return { label, kind };
}

// A part's words are drawn when somebody opens it: the tail may be thousands of messages.
function PartCard({ part, preview, total }) {
  const [isOpen, setOpen] = useState(false);
  const { label, kind } = nameOf(part);
  const toggle = (event) => setOpen(event.currentTarget.open);
  return html`<details class=${`card part ${kind}`} onToggle=${toggle}>
    <summary><span class=${`dot ${kind}`} aria-hidden="true"></span><span>${label}</span>
      <span class="part-size"><span class="number">${formatCount(part.tokens)}</span>
        <span class="number muted share">${formatShare(part.tokens / total)}</span></span></summary>
    ${isOpen && html`<${PartBody} part=${part} preview=${preview} />`}
  </details>`;
}

function PartBody({ part, preview }) {
  return html`${part.is_stable && html`<p class="hint">Stays the same until notes change, so the provider's
      prompt cache keeps it.</p>`}
    ${part.text !== null && part.text !== undefined
      ? html`<${Text} text=${part.text} />`
      : html`<${ClientPart} part=${part} preview=${preview} />`}`;
}

function ClientPart({ part, preview }) {
  const [shown, setShown] = useState(SHOWN_MESSAGES);
  if (part.kind !== "tail") return html`<p class="muted">As your client sends them.</p>`;
  const messages = preview.messages.filter((message) => message.role !== "system");
  const hidden = Math.max(0, messages.length - shown);
  return html`${hidden > 0 && html`<button class="quiet" onClick=${() => setShown(shown + 10 * SHOWN_MESSAGES)}>
      Show ${countOf(hidden, "earlier message")}</button>`}
    ${messages.slice(hidden).map((message, index) => html`<${Message} key=${hidden + index} message=${message} />`)}`;
}
