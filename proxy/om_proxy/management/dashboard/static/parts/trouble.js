// Threads whose memory fails: by cause, with what to do.
import { useAnswer } from "../data.js";
import { countOf, titleOf } from "../format.js";
import { explainCause, groupByCause } from "../causes.js";
import { linkToThread } from "../route.js";
import { Badge, Name, Sentence } from "./basics.js";
import { html } from "../view.js";

const MAX_THREADS = 200; // of each state
const NAMED_THREADS = 5; // of each cause
const REFRESH_S = 30;

export function Trouble({ isShown = true }) {
  const path = isShown ? "/threads" : null;
  const query = { order: "recent", limit: MAX_THREADS };
  const parked = useAnswer(path, { ...query, state: "parked" }, { interval_s: REFRESH_S });
  const failing = useAnswer(path, { ...query, state: "failing" }, { interval_s: REFRESH_S });
  const threads = [...(parked.data?.items ?? []), ...(failing.data?.items ?? [])];
  if (threads.length === 0) return null;
  return html`<section class="trouble" aria-label="Threads that need attention">
    <h2>Needs attention</h2>
    <ul class="lines causes">${groupByCause(threads).map(
      ({ cause, threads: found }) => html`<${CauseLine} key=${cause} cause=${cause} threads=${found} />`,
    )}</ul>
    <p class="muted small">Every message still reaches the model.</p>
  </section>`;
}

function CauseLine({ cause, threads }) {
  const { title, advice } = explainCause(cause);
  const parked = threads.filter((thread) => thread.parked).length;
  const more = threads.length - NAMED_THREADS;
  return html`<li class="cause">
    <p class="row"><strong>${title}</strong>
      <${Badge} kind=${parked > 0 ? "bad" : "warn"}>${countOf(threads.length, "thread")}<//></p>
    <p><span class="muted">What to do: </span><bdi><${Sentence} text=${advice} /></bdi>${parked > 0 && html`
      <span> Then let ${parked === 1 ? "the thread" : "the threads"} that memory has given up try again:
        on ${parked === 1 ? "its" : "each one's"} page, or all by <code>om-proxy doctor --revive</code>.</span>`}</p>
    <p class="row small">${threads.slice(0, NAMED_THREADS).map(
      (thread) => html`<span class="row"><a href=${linkToThread(thread)}><${Name} text=${titleOf(thread)} length=${60} /></a>
        ${thread.parked
          ? html`<${Badge} kind="bad">given up<//>`
          : html`<span class="muted">failed ${thread.failures}×</span>`}</span>`,
    )}${more > 0 && html`<a href="#/threads?state=failing">and ${more} more</a>`}</p>
  </li>`;
}
