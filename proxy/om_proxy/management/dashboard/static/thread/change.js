// A change that a dialog sends: under way, refused, or done.
import { Notice } from "../parts/basics.js";
import { html, useState } from "../view.js";

// `work(version, ...args)` sends the change. `version` is the one that the visitor looked at when the
// dialog opened, and undefined once they insist. `done` gets the answer; `refresh` is called where the
// thread has moved on meanwhile. The answer: {send, insist, isBusy, error}.
export function useChange(work, done, { version, refresh = null } = {}) {
  const [seen] = useState(version);
  const [state, setState] = useState({ isBusy: false, error: null, args: [] });
  const run = async (sentVersion, args) => {
    setState({ isBusy: true, error: null, args });
    try {
      done(await work(sentVersion, ...args));
    } catch (error) {
      if (error.status === 409) refresh?.();
      setState({ isBusy: false, error, args });
    }
  };
  const { isBusy, error } = state;
  return { send: (...args) => run(seen, args), insist: () => run(undefined, state.args), isBusy, error };
}

const MOVED = `These notes are not there any more: they were edited, condensed or withdrawn meanwhile.
  Nothing was changed. Copy your words if you need them, cancel, and look at the notes as they are
  now.`;

function Refusal({ name, change }) {
  const { error, insist, isBusy } = change;
  if (error.code === "om_moved") return html`<${Notice} kind="bad">${MOVED}<//>`;
  if (error.code !== "om_conflict") return html`<${Notice} kind="bad">${error.message}<//>`;
  return html`<${Notice} kind="warn" isUrgent>
    <p>The thread has changed since you opened this: a new turn, new notes, or another person. Nothing
      was changed yet. Cancel to look at what stands now, or go on with what you have here.</p>
    <button type="button" disabled=${isBusy} onClick=${insist}>${name} anyway</button><//>`;
}

export function Buttons({ name, kind = "primary", change, isReady = true, close }) {
  return html`${change.error && html`<${Refusal} name=${name} change=${change} />`}
    <div class="row end">
      <button type="button" onClick=${close}>Cancel</button>
      <button type="submit" class=${kind} disabled=${change.isBusy || !isReady}>
        ${change.isBusy ? `${name}…` : name}</button>
    </div>`;
}
