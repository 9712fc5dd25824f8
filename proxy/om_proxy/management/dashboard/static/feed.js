// What happened to memories, told in words: the newest events, then those that come.
import { askJson } from "./api.js";
import { nameCode } from "./causes.js";
import { countOf, formatCount } from "./format.js";
import { followEvents } from "./stream.js";
import { useEffect, useState } from "./view.js";

const MAX_EVENTS = 200;
const RETRY_MS = 3_000; // where the stored events could not be read

// kind → [its name in the filter, the types it holds]
export const KINDS = {
  written: ["Notes written", ["buffering-end", "observation-end"]],
  active: ["Became active", ["activation"]],
  failed: ["Failures", ["buffering-failed", "observation-failed"]],
  people: ["By people", ["edited", "forgotten", "thread-update"]],
  started: ["Starts", ["buffering-start", "observation-start"]],
};
const KIND_BY_TYPE = new Map(
  Object.entries(KINDS).flatMap(([kind, [, types]]) => types.map((type) => [`data-om-${type}`, kind])),
);

export function kindOf(event) {
  return KIND_BY_TYPE.get(event.type) ?? null;
}

// Return {events, error, isOpen, hasGap}: the newest first. `path`: of all events or of a thread's.
// `newest`: how many stored events to begin with. `hasGap`: some were gone before they could be read.
export function useFeed(path, newest) {
  const [feed, setFeed] = useState({ events: [], error: null, isOpen: false, hasGap: false });
  useEffect(() => {
    let stop = () => null;
    let isGone = false;
    const start = async () => {
      try {
        const page = await askJson("GET", path, { query: { newest, limit: newest } });
        if (isGone) return;
        setFeed({ events: page.items.reverse(), error: null, isOpen: false, hasGap: false });
        stop = followEvents(path, {
          after: page.cursor,
          onEvent: (event) => setFeed((last) => add(last, event)),
          onState: (state) =>
            setFeed((last) => ({ ...last, isOpen: state === "open", error: state === "open" ? null : state })),
        });
      } catch (error) {
        if (isGone) return;
        setFeed((last) => ({ ...last, error, isOpen: false }));
        const timer = setTimeout(start, RETRY_MS);
        stop = () => clearTimeout(timer);
      }
    };
    start();
    return () => {
      isGone = true;
      stop();
    };
  }, [path, newest]);
  return feed;
}

function add(feed, { id, type, data }) {
  if (type === "om-gap") return { ...feed, hasGap: true };
  if (!KIND_BY_TYPE.has(type) || feed.events.some((event) => event.id === id)) return feed;
  const event = { id, type, ...JSON.parse(data) };
  return { ...feed, events: [event, ...feed.events].slice(0, MAX_EVENTS) };
}

const isReflection = (data) => data.operationType === "reflection";
const OF_TRIGGER = {
  threshold: "at the threshold",
  ttl: "after a pause",
  provider_change: "for another model",
};
const ACTIONS = {
  edited: "A note was edited",
  withdrawn: "A note was withdrawn",
  forgotten: "A note was forgotten with its older versions",
  "chunk-edited": "Ready notes were edited",
  "chunk-dropped": "Ready notes were dropped",
  undone: "A change was taken back",
  pinned: "A note was pinned",
  "pin-edited": "A pinned note was edited",
  unpinned: "A pinned note was removed",
  activated: "Ready notes were made active by hand",
  parked: "The thread was given up",
  revived: "The thread was taken up again",
  settings: "Thresholds were changed",
};

// Return {title, before, after, unit, detail} of an event.
export function tellEvent({ type, data }) {
  switch (type.replace("data-om-", "")) {
    case "buffering-end":
      return {
        title: isReflection(data) ? "Notes were condensed ahead" : "Notes were written ahead",
        before: data.tokensBuffered,
        after: data.bufferedTokens,
      };
    case "observation-end":
      return {
        title: isReflection(data) ? "Notes were condensed" : "Notes were written while a request waited",
        before: data.tokensObserved,
        after: data.observationTokens,
      };
    case "activation":
      return {
        title: isReflection(data)
          ? "Condensed notes took the place of older ones"
          : `Notes took the place of ${countOf(data.messagesActivated, "message")}`,
        before: data.tokensActivated,
        after: data.observationTokens,
        detail: OF_TRIGGER[data.triggeredBy],
      };
    case "buffering-failed":
    case "observation-failed":
      return {
        title: isReflection(data) ? "Condensing failed" : "Writing notes failed",
        detail: `${nameCode(data.error)}; ${formatCount(data.tokensAttempted)} tokens wait for the next try`,
      };
    case "buffering-start":
    case "observation-start":
      return { title: isReflection(data) ? "Condensing began" : "Writing notes began" };
    case "edited":
      return { title: ACTIONS[data.action] ?? "A person changed the memory" };
    case "thread-update":
      return { title: "The thread has another title" };
    case "forgotten":
      return { title: "A thread was forgotten", detail: data.label };
    default:
      return { title: type };
  }
}
