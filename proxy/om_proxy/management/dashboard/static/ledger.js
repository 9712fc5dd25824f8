// Sums of the ledger, and what they say in words. Costs are micro-dollars.

const DAY_MS = 86_400_000;

function addFigures(one, other) {
  if (typeof one === "number") return one + other;
  const names = Object.keys({ ...one, ...other });
  return Object.fromEntries(
    names.map((name) => {
      const [a, b] = [one?.[name], other?.[name]];
      if (name === "priced") return [name, (a ?? true) && (b ?? true)];
      if (a === null || a === undefined) return [name, b ?? null];
      if (b === null || b === undefined) return [name, a];
      return [name, addFigures(a, b)];
    }),
  );
}

export function sumLedgers(ledgers) {
  return ledgers.reduce((sum, ledger) => (sum ? addFigures(sum, ledger) : ledger), null);
}

export function promptTokens({ input, cached, cache_write }) {
  return input + cached + cache_write;
}

// Return {without, sent, memory, net, share, cachedShare}: tokens of prompts and of memory's own calls;
// `net` is what was saved after those, and `share` its part of the tokens without memory.
export function readTokens(ledger) {
  const without = promptTokens(ledger.baseline_tokens);
  const sent = promptTokens(ledger.tokens);
  const memory = promptTokens(ledger.memory_tokens) + ledger.memory_tokens.output;
  const net = without - sent - memory;
  return {
    without,
    sent,
    memory,
    net,
    share: without > 0 ? net / without : 0,
    cachedShare: sent > 0 ? ledger.tokens.cached / sent : 0,
  };
}

// Whether any money can be shown at all.
export function hasCosts(ledger) {
  return ledger.saving.baseline > 0 || ledger.versus_whole_history.baseline > 0;
}

export function dayStart(day) {
  return Date.parse(`${day}T00:00:00Z`) / 1000;
}

// The first of the last `days` before `now`, as in 2026-05-31.
export function dayBefore(days, now = Date.now()) {
  return new Date(now - (days - 1) * DAY_MS).toISOString().slice(0, 10);
}

// The lines of the days from one to the other; empty: without an end.
export function selectDays(lines, { from, to }) {
  return lines.filter(({ day }) => day >= from && (!to || day <= to));
}
