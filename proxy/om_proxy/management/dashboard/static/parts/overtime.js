// The ledger's figures by day: what they cost, their tokens, the prompt cache, and requests.
import { formatCount, formatMoney, formatShare, formatSigned } from "../format.js";
import { dayStart, hasCosts, promptTokens } from "../ledger.js";
import { DayChart } from "./chart.js";
import { html, useState } from "../view.js";

const SENT = { name: "Sent", kind: "observed" };
const SAVED = { name: "Saved by memory", kind: "rules" };
const LOST = { name: "More than without memory", kind: "failed" };
const OWN_CALLS = { name: "Memory's own calls", kind: "buffered" };

// measure → its name, its chart, and what a day of the ledger is in it
const MEASURES = {
  tokens: {
    name: "Prompt tokens",
    series: [SENT, SAVED, LOST],
    columns: ["Without memory", "Sent", "Difference"],
    read({ baseline_tokens, tokens }) {
      const [without, sent] = [promptTokens(baseline_tokens), promptTokens(tokens)];
      return {
        parts: [Math.min(sent, without), Math.max(0, without - sent), Math.max(0, sent - without)],
        values: [formatCount(without), formatCount(sent), formatSigned(sent - without)],
      };
    },
  },
  cost: {
    name: "Cost",
    series: [{ name: "Paid", kind: "observed" }, OWN_CALLS, SAVED],
    columns: ["Without memory", "Paid", "Memory's own calls", "Saved"],
    formatTick: formatMoney,
    read({ saving: { baseline, cost, memory_cost, net } }) {
      return { parts: [cost, memory_cost, Math.max(0, net)], values: [baseline, cost, memory_cost, net].map((sum) => formatMoney(sum)) };
    },
  },
  cache: {
    name: "Prompt cache",
    series: [{ name: "From the prompt cache", kind: "reflected" }, { name: "Sent anew", kind: "rules" }],
    columns: ["Sent", "From the prompt cache", "Share"],
    read({ tokens }) {
      const sent = promptTokens(tokens);
      const share = sent > 0 ? tokens.cached / sent : 0;
      return { parts: [tokens.cached, sent - tokens.cached], values: [formatCount(sent), formatCount(tokens.cached), formatShare(share)] };
    },
  },
  requests: {
    name: "Requests",
    series: [{ name: "Turns", kind: "observed" }, OWN_CALLS],
    columns: ["Turns", "Memory's own calls", "Without reported tokens"],
    read({ turns, memory_calls, estimated }) {
      return { parts: [turns, memory_calls], values: [turns, memory_calls, estimated].map(formatCount) };
    },
  },
};

export function OverTime({ days }) {
  const [chosen, setChosen] = useState("tokens");
  const hasMoney = days.some(({ ledger }) => hasCosts(ledger));
  const { name, series, columns, formatTick, read } = MEASURES[chosen];
  const lines = days.map(({ day, ledger }) => ({ at: dayStart(day), ...read(ledger) }));
  const shown = series.filter((one, index) => one !== LOST || lines.some(({ parts }) => parts[index] > 0));
  return html`<section class="card" aria-label=${`${name} by day`}>
    <${DayChart} label=${`${name} by day`} days=${lines} series=${shown} columns=${columns} formatTick=${formatTick}>
      <div class="row" role="group" aria-label="Figure">${Object.entries(MEASURES).map(
        ([key, measure]) => (key !== "cost" || hasMoney) && html`<button class="chip"
          aria-pressed=${key === chosen ? "true" : "false"} onClick=${() => setChosen(key)}>${measure.name}</button>`,
      )}</div>
    <//>
  </section>`;
}
