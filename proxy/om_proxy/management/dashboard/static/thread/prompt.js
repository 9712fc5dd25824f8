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
  observations: ["Notes in the prompt", "observed"],
  others: ["Other conversations", "reflected"],
  hints: ["Current task", "buffered"],
  hint: ["How to go on", "buffered"],
  tail: ["Messages in the prompt", "raw"],
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
    )}
    ${preview.recall && html`<${LookUps} word=${preview.recall} tool=${preview.tool} />`}`;
}

// why the tool for look-ups is not offered
const NOT_OFFERED = {
  n: "the request asks for several replies",
  functions: "the request uses the older functions",
  name: "the client has tools of both of its names",
  refused: "the model server refused it lately",
  json: "the reply must be JSON",
  unsure: "nobody knows whether this model calls tools",
  api: "the thread's API has no form for it",
};

function LookUps({ word, tool }) {
  if (!tool) {
    return html`<p class="muted">The tool that looks up earlier messages is not offered: ${NOT_OFFERED[word] ?? word}.</p>`;
  }
  return html`<details class="card part rules">
    <summary><span class="dot rules" aria-hidden="true"></span><span>Tool for look-ups</span>
      <span class="part-size muted">not counted</span></summary>
    <p class="hint">It stands behind your client's own tools and never changes, so the provider's prompt cache
      keeps it. Look-ups of earlier replies stand among the messages.</p>
    <${Text} text=${JSON.stringify(tool, null, 2)} />
  </details>`;
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
