// Threads as a list, and what to do where there are none.
import { explainCause } from "../causes.js";
import { countOf, formatCount, formatShort, nameOfTenant, titleOf } from "../format.js";
import { linkToThread } from "../route.js";
import { isSignedIn } from "../session.js";
import { Badge, Empty, Name, Time } from "./basics.js";
import { PageHead } from "./shell.js";
import { html } from "../view.js";

// What the two bars of a thread count, the same words wherever they stand.
export const BARS = { messages: "Messages word for word", notes: "Notes" };

// `ofOne`: all threads are of the resource that the page is about.
export function ThreadList({ items, label, ofOne = false }) {
  const hasTenants = new Set(items.map((line) => line.tenant)).size > 1;
  return html`<ul class="lines" aria-label=${label}>
    ${items.map(
      (line) => html`<li key=${`${line.tenant} ${line.resource} ${line.thread}`}>
        <a class="line" href=${linkToThread(line)}><${ThreadLine} line=${line}
          hasTenant=${hasTenants} ofOne=${ofOne} /></a>
      </li>`,
    )}
  </ul>`;
}

function ThreadLine({ line, hasTenant, ofOne }) {
  return html`<span class="line-name">
      <span class="line-title"><strong class="one-line"><${Name} text=${titleOf(line)} /></strong>
        <${StateBadge} line=${line} /></span>
      <span class="muted small clamped">
        ${titleOf(line) !== line.thread && html`<${Name} text=${line.thread} length=${16} /> · `}
        ${!ofOne && line.resource !== line.thread && html`of <${Name} text=${line.resource} /> · `}
        ${hasTenant && html`key <${Name} text=${nameOfTenant(line.tenant)} length=${24} /> · `}
        ${countOf(line.messages, "message")}
        ${line.failure_cause && line.failures > 0 && html` · ${explainCause(line.failure_cause).title}`}
      </span>
    </span>
    <span class="line-windows">
      <${MiniGauge} label=${BARS.messages} value=${line.pending_tokens}
        limit=${line.pending_threshold} kind="raw" />
      <${MiniGauge} label=${BARS.notes} value=${line.note_tokens}
        limit=${line.note_threshold} kind="observed" />
    </span>
    <span class="line-time muted"><${Time} at=${line.turn_at} /></span>`;
}

// A window in two short lines: its words, and how full it is.
function MiniGauge({ label, value, limit, kind }) {
  if (limit === null || limit === undefined) return null;
  return html`<span class="mini">
    <span class="mini-words small"><span class="muted">${label}</span>
      <span class="number">${formatShort(value)} of ${formatShort(limit)}</span></span>
    <span class="bar thin" aria-hidden="true"><span class=${`fill ${kind}`}
      style=${{ width: `${Math.min(1, value / limit) * 100}%` }}></span></span>
  </span>`;
}

function StateBadge({ line }) {
  if (line.parked) return html`<${Badge} kind="bad">Given up<//>`;
  if (line.failures > 0) {
    return html`<${Badge} kind="warn">Failed ${formatCount(line.failures)}×<//>`;
  }
  return null;
}

// What the address names is not there, or not for this visitor.
export function NotHere({ title, who, signIn }) {
  if (!isSignedIn(who)) {
    return html`<${PageHead} title="Sign in to see it" about="It may belong to a key. You come back here." />
      <p><button class="primary" onClick=${signIn}>Sign in</button></p>`;
  }
  return html`<${PageHead} title=${title} /><${Empty} title="It is not here"><p>It was forgotten, or it belongs to another key.${" "}
    <a href="#/threads">All threads</a></p><//>`;
}

export function NoThreads({ who, signIn }) {
  const base = `${location.origin}${location.pathname.replace(/om\/$/, "")}v1`;
  return html`<${Empty} title="No conversations yet">
    ${!isSignedIn(who) && html`<p>Here you see conversations of clients that send no key. Does your
      client send one? Then <button class="inline" onClick=${signIn}>sign in with it</button> to see
      its threads.</p>`}
    ${isSignedIn(who) && !who.isAdmin && html`<p>No client has named a thread with this key yet. If
      your client sends another key, sign in with that one. If this was meant to be the admin token,
      it is not the one that the server has.</p>`}
    <p>To start one, point a client at this address and name the conversation:</p>
    <dl class="facts">
      <dt>Base URL</dt><dd><code>${base}</code></dd>
      <dt>Header</dt><dd><code>X-OM-Thread: trip-to-lisbon</code></dd>
    </dl>
    <p>A client that can set no header uses another base URL:${" "}
      <code>${base.replace(/v1$/, "t/trip-to-lisbon/v1")}</code>.</p>
    <p>Or <a href="#/try">try it here</a>.</p>
    <p class="muted">No key at hand? <code>om-proxy demo --keep</code> shows a full memory in a
      dashboard of its own.</p>
  <//>`;
}
