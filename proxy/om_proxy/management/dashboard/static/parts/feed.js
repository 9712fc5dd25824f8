// Events as a list, with what was before and after.
import { useAnswer } from "../data.js";
import { formatClock, formatCount, formatFull, formatMoment, formatShare, titleOf } from "../format.js";
import { kindOf, tellEvent } from "../feed.js";
import { linkToThread } from "../route.js";
import { Name } from "./basics.js";
import { html } from "../view.js";

// kind of events → the colour of their dot
export const DOTS = {
  written: "buffered",
  active: "observed",
  failed: "failed",
  people: "pinned",
  started: "rules",
};

const NAMED_THREADS = 100; // the newest; an event of another shows the thread's own name
const REFRESH_S = 60;
const writeKey = ({ tenant, resource, thread }) => JSON.stringify([tenant, resource, thread]);

export function EventList({ events, hasThreads = true }) {
  const newest = useAnswer(hasThreads ? "/threads" : null, { order: "recent", limit: NAMED_THREADS }, { interval_s: REFRESH_S });
  const names = new Map((newest.data?.items ?? []).map((line) => [writeKey(line), titleOf(line)]));
  return html`<ol class="lines feed" aria-label="Events, the newest first">
    ${events.map((event) => html`<${EventLine} key=${event.id} event=${event} hasThread=${hasThreads}
      name=${names.get(writeKey(event)) ?? event.thread} />`)}
  </ol>`;
}

function EventLine({ event, hasThread, name }) {
  const { title, before, after, detail } = tellEvent(event);
  const isToday = Date.now() / 1000 - event.at < 86_400;
  return html`<li class="event">
    <span class=${`dot ${DOTS[kindOf(event)] ?? ""}`} aria-hidden="true"></span>
    <span class="event-words"><strong>${title}</strong>
      ${detail && html`<span class="muted">${detail}</span>`}
      ${hasThread && event.thread && html`<a href=${linkToThread(event)}><${Name} text=${name} length=${36} /></a>`}
      ${hasThread && !event.thread && event.resource && html`<span class="muted">log of
        ${" "}<${Name} text=${event.resource} length=${60} /></span>`}
    </span>
    <span class="event-tokens">${before !== undefined && after !== undefined &&
      html`<${BeforeAfter} before=${before} after=${after}
        kind=${event.data.operationType === "reflection" ? "reflected" : "observed"} />`}</span>
    <time class="muted number small" datetime=${new Date(event.at * 1000).toISOString()}
      title=${formatFull(event.at)}>${isToday ? formatClock(event.at) : formatMoment(event.at)}</time>
  </li>`;
}

export function BeforeAfter({ before, after, kind }) {
  const share = before > 0 ? Math.min(1, after / before) : 0;
  return html`<span class="before-after number"><span>${formatCount(before)}</span>
      <span aria-hidden="true">→</span><span>${formatCount(after)} tokens</span>
      <span class="muted">${before > 0 && `${after > before ? "+" : ""}${formatShare(after / before - 1)}`}</span></span>
    <span class="bar thin" aria-hidden="true"><span class=${`fill ${kind}`}
      style=${{ width: `${share * 100}%` }}></span></span>`;
}
