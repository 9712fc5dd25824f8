// Where the words of conversations stand: word for word, in notes that are ready, in notes, condensed.
import { askThread } from "../api.js";
import { countOf } from "../format.js";
import { Shares } from "./basics.js";
import { BARS } from "./threads.js";
import { html, useEffect, useState } from "../view.js";

// Return the tokens of each tier, of threads whose states were read. Threads that share a log count
// its notes once.
export function sumTiers(statuses) {
  const tiers = { raw: 0, buffered: 0, observed: 0, reflected: 0 };
  const logs = new Set();
  for (const { messages, observations, chunks, tenant, resource, thread, scope } of statuses) {
    const ready = chunks.reduce((sum, chunk) => sum + chunk.source_tokens, 0);
    tiers.buffered += ready;
    tiers.raw += Math.max(0, messages.pending_tokens - ready);
    const log = JSON.stringify(scope === "resource" ? [tenant, resource] : [tenant, resource, thread]);
    if (logs.has(log)) continue;
    logs.add(log);
    tiers.observed += observations.tokens - observations.condensed_tokens;
    tiers.reflected += observations.condensed_tokens;
  }
  return tiers;
}

export function TierShares({ tiers, label }) {
  return html`<${Shares} label=${label} parts=${[
    { label: BARS.messages, kind: "raw", value: tiers.raw },
    { label: `${BARS.messages}, notes ready`, kind: "buffered", value: tiers.buffered },
    { label: BARS.notes, kind: "observed", value: tiers.observed },
    { label: "Condensed notes", kind: "reflected", value: tiers.reflected },
  ]} />`;
}

// Of the newest threads, as their own pages say it. `lines`: those threads of a list.
export function NewestTiers({ lines }) {
  const [statuses, setStatuses] = useState(null);
  useEffect(() => {
    let isGone = false;
    const reading = lines.map((line) => askThread("GET", line).catch(() => null)); // it may be forgotten by now
    Promise.all(reading).then((read) => isGone || setStatuses(read.filter(Boolean)));
    return () => (isGone = true);
  }, [JSON.stringify(lines.map((line) => [line.tenant, line.resource, line.thread, line.turn_at, line.generation]))]);
  const tiers = statuses && sumTiers(statuses);
  if (!tiers || Object.values(tiers).every((tokens) => tokens === 0)) return null;
  return html`<section class="card tiers" aria-label="What memory holds">
    <h2>What memory holds</h2>
    <p class="muted small">${lines.length === 1
      ? "The messages and notes of your thread."
      : `The messages and notes of your ${countOf(lines.length, "newest thread")}.`}</p>
    <${TierShares} tiers=${tiers} label="What memory holds" />
  </section>`;
}
