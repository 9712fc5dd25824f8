// The small parts that every page uses.
import { cutText, formatAgo, formatCount, formatFull, formatShare, showUnseen, titleOf } from "../format.js";
import { html, useEffect, useRef, useState } from "../view.js";

const SHOWN_CHARS = 20_000; // of one text at first, and more with each click

const SHOWN_MARKED_CHARS = 2_000;
const SHOWN_CHARS_BEFORE = 200; // before the first mark

// Foreign text within a line: a name or a title. It turns no text around it.
export function Name({ text, length = 200 }) {
  const end = text.length > length ? "…" : "";
  return html`<bdi class="name" dir="auto">${showUnseen(cutText(text, length))}${end}</bdi>`;
}

// A thread's own name, small, where its title stands for it.
export function NameBesideTitle({ line }) {
  return titleOf(line) === line.thread ? null : html`<span class="muted small"><${Name} text=${line.thread} length=${16} /></span>`;
}

// A sentence of ours in which commands and settings stand between backticks.
export function Sentence({ text }) {
  return text.split("`").map((part, index) => (index % 2 ? html`<code>${part}</code>` : part));
}

// Foreign text as a block, always as text.
export function Text({ text, className = "" }) {
  const [length, setLength] = useState(SHOWN_CHARS);
  const shown = cutText(text, length);
  return html`<div class=${`text ${className}`} dir="auto">${showUnseen(shown)}</div>
    ${shown.length < text.length &&
    html`<button class="quiet" onClick=${() => setLength(length + 10 * SHOWN_CHARS)}>
      Show more (${formatCount(text.length - shown.length)} characters left)</button>`}`;
}

// The same with words marked: {start, end} in characters (code points), in order. Of a long text, what
// stands around the first of them is shown.
export function MarkedText({ text, marks }) {
  const characters = Array.from(text);
  const begin = Math.max(0, Math.min((marks[0]?.start ?? 0) - SHOWN_CHARS_BEFORE, characters.length - SHOWN_MARKED_CHARS));
  const stop = begin + SHOWN_MARKED_CHARS;
  const cut = (start, end) => showUnseen(characters.slice(start, Math.min(end, stop)).join(""));
  const pieces = [];
  let last = begin;
  for (const { start, end } of marks.filter((mark) => mark.start < stop)) {
    pieces.push(cut(last, start), html`<mark>${cut(start, end)}</mark>`);
    last = end;
  }
  return html`<div class="text" dir="auto">${begin > 0 && "…"}${pieces}${cut(last, stop)}${stop < characters.length && "…"}</div>`;
}

export function Time({ at }) {
  if (at === null || at === undefined) return html`<span class="muted">never</span>`;
  const iso = new Date(at * 1000).toISOString();
  return html`<time datetime=${iso} title=${formatFull(at)}>${formatAgo(at)}</time>`;
}

// How full a window is, as a bar with its words and numbers.
export function Gauge({ label, value, limit, unit = "tokens", kind = "raw", hint }) {
  const share = limit > 0 ? Math.min(1, value / limit) : 0;
  const words = `${formatCount(value)} of ${formatCount(limit)} ${unit}`;
  return html`<div class="gauge">
    <div class="gauge-words"><span>${label}</span><span class="number">${words}</span></div>
    <div class="bar" role="meter" aria-label=${label} aria-valuemin="0" aria-valuemax=${limit}
      aria-valuenow=${Math.min(value, limit)} aria-valuetext=${words}>
      <div class=${`fill ${kind}`} style=${{ width: `${share * 100}%` }}></div>
    </div>
    ${hint && html`<p class="hint">${hint}</p>`}
  </div>`;
}

// Shares of a whole, side by side: [{label, value, kind}]. What stands below says the same in words.
export function ShareBar({ parts }) {
  const total = parts.reduce((sum, part) => sum + part.value, 0);
  return html`<div class="bar split" aria-hidden="true">
    ${parts.map(
      (part) => html`<div class=${`fill ${part.kind}`} title=${part.label}
        style=${{ width: `${(part.value / total) * 100}%` }}></div>`,
    )}
  </div>`;
}

export function Shares({ label, parts, unit = "tokens" }) {
  const shown = parts.filter((part) => part.value > 0);
  const total = shown.reduce((sum, part) => sum + part.value, 0);
  if (total === 0) return null;
  return html`<figure class="shares">
    <${ShareBar} parts=${shown} />
    <figcaption class="unseen">${label}</figcaption>
    <ul class="legend">
      ${shown.map(
        (part) => html`<li><span class=${`dot ${part.kind}`} aria-hidden="true"></span>
          <span>${part.label}</span>
          <span class="number">${formatCount(part.value)} ${unit}</span>
          <span class="number muted">${formatShare(part.value / total)}</span></li>`,
      )}
    </ul>
  </figure>`;
}

export function Notice({ kind = "info", isUrgent = kind === "bad", children }) {
  return html`<div class=${`notice ${kind}`} role=${isUrgent ? "alert" : "status"}>
    ${children}</div>`;
}

export function Badge({ kind = "", children }) {
  return html`<span class=${`badge ${kind}`}>${children}</span>`;
}

export function Spinner() {
  return html`<p class="muted waiting" role="status">Loading…</p>`;
}

export function Empty({ title, children }) {
  return html`<div class="empty"><h2>${title}</h2>${children}</div>`;
}

// What stands on the page is old: say since when and why.
export function Stale({ answer }) {
  if (!answer.error || answer.error.status === 401) return null;
  const since = answer.at
    ? html` What you see is from <${Time} at=${answer.at} />.`
    : "";
  return html`<${Notice} kind="bad">${answer.error.message}${since}
    <button class="quiet" onClick=${answer.reload}>Try again</button><//>`;
}

// A dialog over the page. `close` is called for Escape too.
export function Dialog({ title, close, isWide = false, children }) {
  const dialog = useRef(null);
  useEffect(() => {
    dialog.current.showModal();
  }, []);
  const cancel = (event) => {
    event.preventDefault();
    close();
  };
  return html`<dialog ref=${dialog} class=${isWide ? "wide" : ""} onCancel=${cancel} aria-labelledby="dialog-title">
    <h2 id="dialog-title">${title}</h2>
    ${children}
  </dialog>`;
}
