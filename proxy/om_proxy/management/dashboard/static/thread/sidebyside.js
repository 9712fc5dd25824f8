// Two prompts beside each other, message by message.
import { countOf, cutText, messageText } from "../format.js";
import { Badge, Dialog } from "../parts/basics.js";
import { Message } from "./message.js";
import { html, useMemo, useState } from "../view.js";

const SHOWN_CHARS = 600; // of a message at first
const UNFOLDED = 3; // neighbours of one kind that are shown at once
const KINDS = {
  dropped: ["not sent: notes stand for it", "observed"],
  added: ["by memory", "reflected"],
  same: ["as it is", "raw"],
};

export function SideBySide({ received, preview, close }) {
  const groups = useMemo(() => groupRows(received, preview), [received, preview]);
  return html`<${Dialog} title="Your client's request, and what the model gets" isWide close=${close}>
    <div class="sides" role="group" aria-label="Messages, side by side" tabindex="0">
      <p class="side-head">Your client sends</p><p class="side-head">The model gets</p>
      ${groups.map((group, index) => html`<${Group} key=${index} group=${group} />`)}
    </div>
    <div class="row end"><button onClick=${close}>Close</button></div>
  <//>`;
}

function Group({ group: { kind, rows } }) {
  const [isOpen, setOpen] = useState(rows.length <= UNFOLDED);
  const [words] = KINDS[kind];
  if (!isOpen) {
    return html`<button class="quiet fold" onClick=${() => setOpen(true)}>
      Show ${countOf(rows.length, "message")}: ${words}</button>`;
  }
  return rows.map(
    ({ left, right }) => html`<${Cell} message=${left} kind=${kind} name="Your client sends" />
      <${Cell} message=${right} kind=${kind} name="The model gets" />`,
  );
}

function Cell({ message, kind, name }) {
  const [isWhole, setWhole] = useState(false);
  if (!message) return html`<div class="side-gap" aria-hidden="true"></div>`;
  const text = messageText(message);
  const shown = isWhole ? text : cutText(text, SHOWN_CHARS);
  const [words, colour] = KINDS[kind];
  const more = shown.length < text.length &&
    html`<button class="quiet" onClick=${() => setWhole(true)}>Show the whole message</button>`;
  return html`<div class="side-cell" aria-label=${name}>
    <${Message} message=${{ role: message.role, content: shown }} kind=${`tier ${colour}`} more=${more}>
      <${Badge}>${words}<//><//></div>`;
}

// Return [{kind, rows: [{left, right}]}]: what stays stands on both sides.
function groupRows(received, { messages, dropped, added }) {
  const [lost, gained] = [new Set(dropped), new Set(added)];
  const groups = [];
  const add = (kind, left, right) => {
    const last = groups[groups.length - 1];
    if (last?.kind === kind) last.rows.push({ left, right });
    else groups.push({ kind, rows: [{ left, right }] });
  };
  let right = 0;
  received.forEach((message, index) => {
    for (; right < messages.length && gained.has(right); right += 1) add("added", null, messages[right]);
    if (lost.has(index)) {
      add("dropped", message, null);
      return;
    }
    add("same", message, messages[right]);
    right += 1;
  });
  for (; right < messages.length; right += 1) add("added", null, messages[right]);
  return groups;
}
