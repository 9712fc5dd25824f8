// The lines of the conversation: a message, the notes that stand for it, and what was replaced.
import { askThread } from "../api.js";
import { countOf, formatDay } from "../format.js";
import { Badge } from "../parts/basics.js";
import { Message, readMessage } from "./message.js";
import { html, useEffect, useMemo, useRef, useState } from "../view.js";

const STATES = {
  raw: ["word for word", "raw"],
  buffered: ["notes ready", "buffered"],
  observed: ["in notes", "observed"],
  superseded: ["replaced", "rules"],
  interrupted: ["broken off", "rules"],
};

// One page of messages. It is drawn anew only where it changes: thousands may stand above it.
export function Lines({ page, thread, selected, select }) {
  const isAbout = (line) => covers(selected, line) || line.seq === selected.first;
  const own = selected !== null && page.some(isAbout) ? selected : null;
  return useMemo(
    () =>
      groupLines(page).map(
        (group) => html`<${GROUPS[group.kind]} key=${group.key} ...${group} thread=${thread}
          selected=${own} select=${select} />`,
      ),
    [page, own],
  );
}

// Put a day above the messages of each day, and neighbours that no longer count into one group.
function groupLines(items) {
  const groups = [];
  let day = null;
  for (const line of items) {
    if (formatDay(line.at) !== day) {
      day = formatDay(line.at);
      groups.push({ kind: "day", key: `d${line.seq}`, day });
    }
    const last = groups[groups.length - 1];
    if (line.state !== "superseded") groups.push({ kind: "line", key: line.seq, line });
    else if (last.kind === "replaced") last.lines.push(line);
    else groups.push({ kind: "replaced", key: `r${line.seq}`, lines: [line] });
  }
  return groups;
}

const GROUPS = { day: Day, line: Line, replaced: Replaced };

function Day({ day }) {
  return html`<h3 class="day">${day}</h3>`;
}

function Replaced({ lines, ...rest }) {
  return html`<details class="folded">
    <summary>${countOf(lines.length, "message")} replaced by an edit or another answer</summary>
    ${lines.map((line) => html`<${Line} key=${line.seq} line=${line} ...${rest} />`)}
  </details>`;
}

function Line({ thread, line, selected, select }) {
  const [raw, setRaw] = useState(line.raw ?? null);
  const place = useRef(null);
  const isMarked = selected !== null && covers(selected, line);
  const isFirst = selected?.first === line.seq;
  useEffect(() => {
    if (isFirst) place.current.scrollIntoView({ block: "start" });
  }, [isFirst]);
  const showWhole = async () => {
    const query = { after: line.seq - 1, through: line.seq, live: "all" };
    const { items } = await askThread("GET", thread, "/messages", { query });
    setRaw(items[0]?.raw ?? null);
  };
  const [words, kind] = STATES[line.state] ?? [line.state, "rules"];
  const notes = noteOf(line);
  const more = raw === null && isCut(line) &&
    html`<button class="quiet" onClick=${showWhole}>Show the whole message</button>`;
  const isFound = isFirst && selected.isOneMessage === true;
  return html`<div ref=${place} class=${`line-box${isMarked ? " marked" : ""}${isFound ? " found" : ""}`}
    aria-current=${isFound ? "true" : undefined}>
    <${Message} message=${readMessage({ ...line, raw })} api=${line.api} number=${line.seq}
      at=${line.at} kind=${`tier ${kind}`} more=${more}>
      <span class="number muted">${countOf(line.tokens, "token")}</span>
      ${notes
        ? html`<button class="badge link" aria-pressed=${isMarked ? "true" : "false"}
            onClick=${() => select(notes)}>${words}</button>`
        : html`<${Badge}>${words}<//>`}
    <//>
  </div>`;
}

// One message, with the notes that stand for it; both columns scroll to their part.
export function selectMessage(line) {
  return { ...(noteOf(line) ?? { kind: null, id: null }), first: line.seq, isOneMessage: true };
}

function noteOf(line) {
  if (line.entry !== null && line.entry !== undefined) return { kind: "entry", id: line.entry };
  if (line.chunk !== null && line.chunk !== undefined) return { kind: "chunk", id: line.chunk };
  return null;
}

function covers(selected, line) {
  const notes = noteOf(line);
  return notes !== null && notes.kind === selected.kind && notes.id === selected.id;
}

const isCut = (line) => (line.excerpt ?? "").endsWith("…");
