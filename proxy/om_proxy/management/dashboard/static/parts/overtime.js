// The ledger's figures by day, of all resources and models, or of one.
import { useAnswer } from "../data.js";
import { cutText, formatCount, formatMillis, formatMoney, formatRatio, formatShare, formatSigned, nameOfTenant, showUnseen } from "../format.js";
import { dayStart, hasCosts, promptTokens, selectDays } from "../ledger.js";
import { Stale } from "./basics.js";
import { DayChart } from "./chart.js";
import { html, useState } from "../view.js";

const MAX_NAMES = 1_000; // of one answer
const MAX_NAME_CHARS = 40;
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
  compression: {
    name: "Compression",
    series: [{ name: "Times shorter than without memory", kind: "rules" }],
    columns: ["Without memory", "Sent", "Times shorter"],
    formatTick: formatRatio,
    read({ baseline_tokens, tokens }) {
      const [without, sent] = [promptTokens(baseline_tokens), promptTokens(tokens)];
      const ratio = sent > 0 ? without / sent : 0;
      return { parts: [ratio], values: [formatCount(without), formatCount(sent), sent > 0 ? formatRatio(ratio) : "–"] };
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
  latency: {
    name: "Latency added",
    series: [{ name: "Added by om-proxy, a turn", kind: "rules" }],
    columns: ["Turns", "Added, a turn"],
    formatTick: formatMillis,
    read({ turns, overhead_us }) {
      const added = turns > 0 ? overhead_us / turns / 1_000 : 0;
      return { parts: [added], values: [formatCount(turns), added > 0 ? formatMillis(added) : "–"] };
    },
  },
  failures: {
    name: "Failures",
    series: [{ name: "Turns that memory failed in", kind: "failed" }],
    columns: ["Turns", "Memory failed in", "Share"],
    read({ turns, degraded }) {
      const share = turns > 0 ? degraded / turns : 0;
      return { parts: [degraded], values: [formatCount(turns), formatCount(degraded), formatShare(share)] };
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

// `days`: of all. `query`: of the answer that they are from, read every `interval_s`. `range`: from which
// day to which.
export function OverTime({ days, query, interval_s, range }) {
  const [chosen, setChosen] = useState("tokens");
  const [only, setOnly] = useState({}); // what the lists add to the query
  const added = { ...only.model, ...only.resource }; // a model has no tenant
  const isPart = Object.keys(added).length > 0;
  const part = useAnswer(isPart ? "/stats" : null, { ...query, ...added }, { interval_s });
  const shownDays = isPart ? selectDays(part.data?.items ?? [], range) : days;
  const hasMoney = days.some(({ ledger }) => hasCosts(ledger));
  const { name, series, columns, formatTick, read } = MEASURES[chosen];
  const lines = shownDays.map(({ day, ledger }) => ({ at: dayStart(day), ...read(ledger) }));
  const shown = series.filter((one, index) => one !== LOST || lines.some(({ parts }) => parts[index] > 0));
  return html`<section class="card" aria-label=${`${name} by day`}>
    <${Stale} answer=${part} />
    <${DayChart} label=${`${name} by day`} days=${lines} series=${shown} columns=${columns} formatTick=${formatTick}>
      <div class="row" role="group" aria-label="Figure">${Object.entries(MEASURES).map(
        ([key, measure]) => (key !== "cost" || hasMoney) && html`<button class="chip"
          aria-pressed=${key === chosen ? "true" : "false"} onClick=${() => setChosen(key)}>${measure.name}</button>`,
      )}</div>
      <div class="row" role="group" aria-label="Of">
        <${OneOf} by="resource" every="All resources" choose=${(resource) => setOnly({ ...only, resource })} />
        <${OneOf} by="model" every="All models" choose=${(model) => setOnly({ ...only, model })} />
      </div>
    <//>
    ${part.data && lines.length === 0 && html`<p class="muted">No turns of it in this time.</p>`}
  </section>`;
}

// A choice of one resource or model, where there are several. What has no name cannot be chosen.
function OneOf({ by, every, choose }) {
  const answer = useAnswer("/stats", { by, limit: MAX_NAMES });
  const lines = (answer.data?.items ?? []).filter((line) => line[by]);
  if (lines.length < 2) return null;
  const isOfOneTenant = lines.every(({ tenant }) => tenant === lines[0].tenant);
  return html`<select aria-label=${every} onChange=${({ currentTarget: { value } }) => choose(value ? JSON.parse(value) : {})}>
    <option value="">${every}</option>
    ${lines.map((line) => html`<option value=${JSON.stringify({ tenant: line.tenant, [by]: line[by] })}>
      ${cutText(showUnseen(line[by]), MAX_NAME_CHARS)}${isOfOneTenant ? "" : ` (key ${nameOfTenant(line.tenant)})`}</option>`)}
  </select>`;
}
