// How the notes of one state differ from those of another, line by line.
import { threadPath, threadQuery } from "../api.js";
import { useAnswer } from "../data.js";
import { countOf, showUnseen } from "../format.js";
import { Notice, Spinner, Stale, Text } from "../parts/basics.js";
import { html, useState } from "../view.js";

const LINES_AROUND = 2; // of those that stayed, beside one that did not
const SHOWN_GROUPS = 60;
const MARKS = { added: "+", removed: "−", same: "" };
const WORDS = { added: "Added: ", removed: "Removed: ", same: "" };

// What became of `earlier` in `later`; both are numbers of states.
export function NotesDiff({ thread, earlier, later, tick }) {
  const path = threadPath(thread, `/generations/${later}`);
  const answer = useAnswer(path, threadQuery(thread, { against: earlier }), { tick });
  if (!answer.data) return html`<${Stale} answer=${answer} />${!answer.error && html`<${Spinner} />`}`;
  const { diff, text, against_text: before } = answer.data;
  if (diff !== null) return html`<${Stale} answer=${answer} /><${DiffLines} lines=${diff} />`;
  return html`<${Notice}>They are too long to be compared line by line. Both are shown.<//>
    <h3>Before</h3><${Text} text=${before ?? ""} /><h3>Now</h3><${Text} text=${text ?? ""} />`;
}

function DiffLines({ lines }) {
  const [shown, setShown] = useState(SHOWN_GROUPS);
  const count = (kind) => lines.filter((line) => line.kind === kind).length;
  const [added, removed] = [count("added"), count("removed")];
  if (added + removed === 0) return html`<p class="muted card">The words are the same in both.</p>`;
  const groups = foldLines(lines);
  return html`<div class="card diff" role="group" aria-label="What changed">
      <p class="small muted">${countOf(removed, "line")} removed, ${countOf(added, "line")} added</p>
      <div class="diff-lines">${groups.slice(0, shown).map((group) => html`<${DiffGroup} group=${group} />`)}</div>
    </div>
    ${groups.length > shown && html`<button class="quiet"
      onClick=${() => setShown(shown + 10 * SHOWN_GROUPS)}>Show more of what changed</button>`}`;
}

function DiffGroup({ group }) {
  const [isOpen, setOpen] = useState(false);
  if (group.folded && !isOpen) {
    return html`<button class="quiet small" onClick=${() => setOpen(true)}>
      ${countOf(group.lines.length, "line")} that stayed</button>`;
  }
  return group.lines.map((line) => html`<div class=${`diff-line ${line.kind}`}>
    <span class="diff-mark" aria-hidden="true">${MARKS[line.kind]}</span>
    <span class="unseen">${WORDS[line.kind]}</span>
    <span class="text" dir="auto">${line.text === null ? "(hidden)" : showUnseen(line.text)}</span></div>`);
}

// Fold what stayed into groups: [{lines, folded}].
function foldLines(lines) {
  const isNear = lines.map(() => false);
  lines.forEach((line, index) => {
    if (line.kind === "same") return;
    const last = Math.min(lines.length - 1, index + LINES_AROUND);
    for (let near = Math.max(0, index - LINES_AROUND); near <= last; near += 1) isNear[near] = true;
  });
  const groups = [];
  lines.forEach((line, index) => {
    const last = groups[groups.length - 1];
    if (last && last.folded === !isNear[index]) last.lines.push(line);
    else groups.push({ folded: !isNear[index], lines: [line] });
  });
  return groups;
}
