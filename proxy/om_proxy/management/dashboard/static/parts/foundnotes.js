// The lines of notes that a search found. Each leads to the note that it stands in.
import { formatFull, formatMoment, titleOf } from "../format.js";
import { linkTo, linkToNote } from "../route.js";
import { Mark, readNote } from "../thread/notetext.js";
import { html } from "../view.js";
import { MarkedText, Name, NameBesideTitle } from "./basics.js";

export function FoundNotes({ found, hasResource }) {
  return html`<ol class="results" aria-label="Lines of notes found">
    ${found.notes.map((note) => html`<li class="card result" key=${`${note.resource} ${note.thread} ${note.entry} ${note.number}`}>
      <p class="result-head"><a href=${linkToNote(note)}><${NameOfLog} note=${note} /></a>
        ${note.thread !== null && html`<${NameBesideTitle} line=${note} />`}
        ${hasResource && note.thread !== null && note.resource !== note.thread && html`<span class="muted">of${" "}
          <a href=${linkTo("resource", note.tenant, note.resource)}><${Name} text=${note.resource} length=${60} /></a></span>`}
        ${note.range && html`<span class="muted">made from <code><${Name} text=${note.range.slice(1, -1)} length=${60} /></code></span>`}
        <time class="muted number" datetime=${new Date(note.at * 1000).toISOString()} title=${formatFull(note.at)}>${formatMoment(note.at)}</time></p>
      <${FoundLine} note=${note} />
    </li>`)}
  </ol>`;
}

function NameOfLog({ note }) {
  if (note.thread !== null) return html`<${Name} text=${titleOf(note)} length=${80} />`;
  return html`Shared notes of <${Name} text=${note.resource} length=${80} />`;
}

function FoundLine({ note: { line, marks } }) {
  const { mark, clock, words } = readNote(line);
  const skipped = Array.from(line.slice(0, line.length - words.length)).length;
  const shown = marks.map(({ start, end }) => ({ start: start - skipped, end: end - skipped })).filter(({ start }) => start >= 0);
  return html`<div class=${`note-line ${clock ? "" : "untimed"}`}>
    <${Mark} mark=${mark} />
    ${clock && html`<span class="note-clock number">${clock}</span>`}
    <${MarkedText} text=${words} marks=${shown} />
  </div>`;
}
