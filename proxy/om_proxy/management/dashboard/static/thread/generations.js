// The states that notes were in: the one that stands now, and those before each change.
import { countOf, formatCount, formatMoment } from "../format.js";
import { html } from "../view.js";

const REASONS = {
  reflection: "condensed",
  undo: "taken back",
  fork: "another branch",
  edit: "edited",
  forgotten: "forgotten",
  scope: "another log",
};

// `chosen`: the number of an earlier state, as a text; null: now. `isDiff`: show what became of it.
export function GenerationChoice({ list, chosen, choose, isDiff, setDiff }) {
  if (list.length < 2) return null;
  const chosenLine = list.find((line) => String(line.number) === chosen);
  const compareNewest = () => {
    choose(String(list.find((line) => !line.is_current).number));
    setDiff(true);
  };
  return html`<div class="states">
    <label class="field"><span>State of the notes</span>
      <select onChange=${(event) => choose(event.currentTarget.value || null)}>
        ${list.map(
          (line) => html`<option value=${line.is_current ? "" : line.number}
            selected=${line.is_current ? chosen === null : String(line.number) === chosen}>
            ${nameState(line)}</option>`,
        )}
      </select></label>
    ${chosenLine
      ? html`<p class="small muted">${describeState(chosenLine)}</p>
          <label class="tick"><input type="checkbox" checked=${isDiff}
            onChange=${(event) => setDiff(event.currentTarget.checked)} />
            <span>Show what has changed since</span></label>`
      : html`<div><button class="quiet" onClick=${compareNewest}>What changed last?</button></div>`}
  </div>`;
}

function nameState(line) {
  const when = line.at === null ? "" : `, since ${formatMoment(line.at)}`;
  return line.is_current ? `Now${when}` : `No. ${line.number}${when}`;
}

function describeState(line) {
  const why = REASONS[line.why] ? `It began when notes were ${REASONS[line.why]}: ` : "";
  return `${why}${countOf(line.entries, "entry", "entries")}, ${formatCount(line.tokens)} tokens.`;
}
