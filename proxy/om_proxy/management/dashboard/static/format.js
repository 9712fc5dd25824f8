// Write numbers, times and foreign text for people. The page is English; times are in the viewer's
// zone.

const COUNT = new Intl.NumberFormat("en");
const SHORT_COUNT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const SHARE = new Intl.NumberFormat("en", { style: "percent", maximumFractionDigits: 0 });
const RATIO = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const DAY = new Intl.DateTimeFormat("en", { day: "numeric", month: "short", year: "numeric" });
// the ledger's days are those of UTC, wherever the viewer is
const LEDGER_DAY = new Intl.DateTimeFormat("en", { day: "numeric", month: "short", year: "numeric", timeZone: "UTC" });
const SHORT_LEDGER_DAY = new Intl.DateTimeFormat("en", { day: "numeric", month: "short", timeZone: "UTC" });
const SHORT_DAY = new Intl.DateTimeFormat("en", { day: "numeric", month: "short" });
const CLOCK = new Intl.DateTimeFormat("en", { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const FULL = new Intl.DateTimeFormat("en", { dateStyle: "full", timeStyle: "long" });
const MINUTE_S = 60;
const HOUR_S = 3600;
const DAY_S = 86_400;

export const formatCount = (number) => COUNT.format(number);
export const formatShort = (number) => SHORT_COUNT.format(number < 1_000 ? Math.round(number) : number);
export const formatShare = (share) => SHARE.format(share).replace("-", "−");
export const formatRatio = (ratio) => `${RATIO.format(ratio)}×`;
export const formatMillis = (millis) => `${RATIO.format(millis)} ms`;
export const formatSigned = (number) => COUNT.format(number).replace("-", "−");
export const formatClock = (at) => CLOCK.format(at * 1000);
export const formatDay = (at) => DAY.format(at * 1000);
export const formatLedgerDay = (at) => LEDGER_DAY.format(at * 1000);
export const formatShortLedgerDay = (at) => SHORT_LEDGER_DAY.format(at * 1000);
export const formatFull = (at) => FULL.format(at * 1000);

// Leave out the year where it is this one.
export function formatMoment(at) {
  const isThisYear = new Date(at * 1000).getFullYear() === new Date().getFullYear();
  return `${(isThisYear ? SHORT_DAY : DAY).format(at * 1000)}, ${formatClock(at)}`;
}

export function countOf(number, one, many = `${one}s`) {
  return `${formatCount(number)} ${number === 1 ? one : many}`;
}

// Money in micro-dollars, with two decimals, four below a cent, as `render_money` of the commands.
export function formatMoney(micros) {
  const dollars = Math.abs(micros) / 1e6;
  const digits = dollars > 0 && dollars < 0.01 ? 4 : 2;
  const text = dollars.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  return `${micros < 0 ? "−" : ""}$${text}`;
}

export function formatAgo(at, now = Date.now() / 1000) {
  const age = now - at;
  if (age < -MINUTE_S) return formatMoment(at);
  if (age < MINUTE_S) return "just now";
  if (age < HOUR_S) return `${Math.floor(age / MINUTE_S)} min ago`;
  if (age < DAY_S) return `${Math.floor(age / HOUR_S)} h ago`;
  if (age < 7 * DAY_S) return countOf(Math.floor(age / DAY_S), "day") + " ago";
  return formatDay(at);
}

// Control characters and the marks that turn text around say nothing to a reader, and can make one
// text look like another. They are shown by a picture or by their number.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069\ufff9-\ufffb]/g;

export function showUnseen(text) {
  return text.replace(UNSEEN, (char) => {
    const code = char.codePointAt(0);
    if (code < 0x20) return String.fromCodePoint(0x2400 + code);
    if (code === 0x7f) return "\u2421";
    return `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
  });
}

// Cut at a character, never inside one.
export function cutText(text, length) {
  if (text.length <= length) return text;
  const isInsidePair = /[\ud800-\udbff]/.test(text[length - 1]);
  return text.slice(0, isInsidePair ? length - 1 : length);
}

// A tenant: the name that the settings give it, or the beginning of what stands for its key, as the
// commands show it.
export function nameOfTenant(tenant) {
  return /^[0-9a-f]{64}$/.test(tenant) ? tenant.slice(0, 8) : tenant;
}

// A thread's name for people. Its own name stands small beside it.
export function titleOf(line) {
  return line.title || line.first_words || line.thread;
}

// The text of a chat message, as people read it: what is no text is named in brackets.
export function messageText(raw) {
  if (!raw || typeof raw !== "object") return String(raw ?? "");
  const parts = [];
  if (typeof raw.content === "string") parts.push(raw.content);
  for (const part of Array.isArray(raw.content) ? raw.content : []) {
    parts.push(typeof part?.text === "string" ? part.text : `[${part?.type ?? "part"}]`);
  }
  for (const call of Array.isArray(raw.tool_calls) ? raw.tool_calls : []) {
    parts.push(`→ ${call?.function?.name ?? "tool"}(${call?.function?.arguments ?? ""})`);
  }
  return parts.join("\n");
}
