// Notes as people read them: days as headings, one line a note, its mark in front. Every word is a
// text node.
import { cutText, formatCount, showUnseen } from "../format.js";
import { html, useEffect, useMemo, useRef, useState } from "../view.js";

const SHOWN_LINES = 60;
const SHOWN_LINE_CHARS = 2_000;
const DAY = /^\W*date:\s*(.+?)\W*$/i;
// in a log that threads share, around what was said in one of them
const THREAD_BEGIN = /^<thread id="([0-9a-f]+)">$/;
const THREAD_END = "</thread>";
const NOTE = /^\s*(?:[*•-]\s*)?(🔴|🟡|🟢|✅)?\s*(?:\((\d\d:\d\d)\))?\s*(.*)$/su;
// drawn as dots: not every system has pictures for these characters
const MARKS = {
  "🔴": ["important", "Important"],
  "🟡": ["useful", "Maybe useful"],
  "🟢": ["background", "Background"],
  "✅": ["done", "Done"],
};

// `found`: the number of a line that is marked, from 1 on; null: none.
export function NoteText({ text, found = null }) {
  const [asked, setShown] = useState(SHOWN_LINES);
  const shown = Math.max(asked, found ?? 0);
  const lines = useMemo(() => text.split("\n"), [text]);
  return html`<div class="note-text">
      ${lines.slice(0, shown).map((line, index) =>
        index + 1 === found
          ? html`<${FoundLine} key=${`found ${found}`}><${NoteLine} line=${line} /><//>`
          : html`<${NoteLine} line=${line} />`,
      )}
    </div>
    ${lines.length > shown &&
    html`<button class="quiet" onClick=${() => setShown(shown + 10 * SHOWN_LINES)}>
      Show ${formatCount(lines.length - shown)} more lines</button>`}`;
}

function FoundLine({ children }) {
  const place = useRef(null);
  useEffect(() => place.current.scrollIntoView({ block: "center" }), []);
  return html`<div class="found-line" ref=${place} aria-current="true">${children}</div>`;
}

function NoteLine({ line }) {
  const [isWhole, setWhole] = useState(false);
  const cut = isWhole ? line : cutText(line, SHOWN_LINE_CHARS);
  const day = cut.length < 200 && DAY.exec(cut);
  if (day) return html`<p class="note-day" dir="auto">${showUnseen(day[1])}</p>`;
  if (cut.trim() === THREAD_END) return null;
  const [, label] = THREAD_BEGIN.exec(cut.trim()) ?? [];
  if (label) return html`<p class="small muted">In the thread <code>${label}</code></p>`;
  const { mark, clock, words } = readNote(cut);
  if (!mark && !clock && !words) return null;
  return html`<div class=${`note-line ${clock ? "" : "untimed"}`}>
    <${Mark} mark=${mark} />
    ${clock && html`<span class="note-clock number">${clock}</span>`}
    <span class="note-words" dir="auto">${showUnseen(words)}
      ${cut.length < line.length &&
      html`<button class="inline" onClick=${() => setWhole(true)}>…
        ${formatCount(line.length - cut.length)} more characters</button>`}</span>
  </div>`;
}

// Return the parts of a line. They are undefined where it has none, but for `words`.
export function readNote(line) {
  const [, mark, clock, words] = NOTE.exec(line);
  return { mark, clock, words };
}

export function Mark({ mark }) {
  if (!mark) return html`<span class="note-mark" aria-hidden="true"></span>`;
  const [kind, words] = MARKS[mark];
  return html`<span class=${`note-mark ${kind}`} title=${words}><span class="unseen">${words}: </span></span>`;
}
