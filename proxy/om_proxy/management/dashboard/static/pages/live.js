// What happens to memories now.
import { KINDS, kindOf, useFeed } from "../feed.js";
import { Badge, Empty, Notice } from "../parts/basics.js";
import { DOTS, EventList } from "../parts/feed.js";
import { PageHead } from "../parts/shell.js";
import { html, useState } from "../view.js";

const STORED_EVENTS = 200;
const SHOWN_AT_FIRST = ["written", "active", "failed", "people"];

export function LivePage() {
  const [kinds, setKinds] = useState(SHOWN_AT_FIRST);
  const { events, error, isOpen, hasGap } = useFeed("/events", STORED_EVENTS);
  const [paused, setPaused] = useState(null); // the events when it was paused
  const isKind = (event) => kinds.includes(kindOf(event));
  const shown = (paused ?? events).filter(isKind);
  const waiting = paused ? events.filter((event) => isKind(event) && !paused.includes(event)).length : 0;
  const toggle = (kind) =>
    setKinds(kinds.includes(kind) ? kinds.filter((other) => other !== kind) : [...kinds, kind]);
  return html`<${PageHead} title="Live" about="What happens to memories, as it happens.">
      <${Badge} kind=${isOpen && !paused ? "good" : ""}>${paused ? "paused" : isOpen ? "connected" : "connecting…"}<//>
      <button onClick=${() => setPaused(paused ? null : events)}>${paused ? `Go on${waiting ? ` (${waiting} new)` : ""}` : "Pause"}</button>
    <//>
    <div class="row" role="group" aria-label="Show">
      ${Object.entries(KINDS).map(
        ([kind, [name]]) => html`<button class="chip" aria-pressed=${kinds.includes(kind) ? "true" : "false"}
          onClick=${() => toggle(kind)}><span class=${`dot ${DOTS[kind]}`} aria-hidden="true"></span>${name}</button>`,
      )}
    </div>
    ${error && html`<${Notice} kind="bad">${error.message} It is tried again.<//>`}
    ${hasGap && html`<${Notice}>Some events are missing here: they were removed before this page read them.<//>`}
    ${shown.length > 0
      ? html`<${EventList} events=${shown} />`
      : html`<${Empty} title="Nothing has happened yet">
          <p>${events.length > 0
            ? "No event of these kinds. Choose others above."
            : "Talk to a model through the proxy: notes appear here as soon as they are written."}</p>
          ${events.length === 0 && html`<p><a href="#/overview">How a client is pointed at it</a></p>`}
        <//>`}`;
}
