// The page's place stands behind the `#`: names of threads never reach a log or another server.
import { useEffect, useState } from "./view.js";

function readPlace() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  try {
    return { steps: path.split("/").map(decodeURIComponent), query: new URLSearchParams(query) };
  } catch {
    return { steps: [""], query: new URLSearchParams() };
  }
}

export function usePlace() {
  const [place, setPlace] = useState(readPlace);
  useEffect(() => {
    const follow = () => setPlace(readPlace());
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  return place;
}

export function linkTo(...steps) {
  return `#/${steps.map(encodeURIComponent).join("/")}`;
}

export function linkToThread(key) {
  return linkTo("thread", key.tenant, key.resource, key.thread);
}

// The thread's page, opened at one of its messages.
export function linkToMessage(key, seq) {
  return `${linkToThread(key)}?message=${seq}`;
}

// The thread's page, opened at a line of one of its notes; without a thread, that of the resource
// whose threads share the log.
export function linkToNote({ tenant, resource, thread, entry, number }) {
  const page = thread === null ? linkTo("resource", tenant, resource) : linkTo("thread", tenant, resource, thread);
  return `${page}?note=${entry}&line=${number}`;
}

// A number that the address names, such as that of a message; null: none.
export function readNumber(query, name) {
  const number = Number(query.get(name));
  return Number.isSafeInteger(number) && number > 0 ? number : null;
}

export function goTo(link) {
  location.hash = link;
}

// Write what a list is filtered by into the address, without a step in the browser's history.
export function replaceQuery(step, values) {
  const given = Object.entries(values).filter(([, value]) => value);
  const query = new URLSearchParams(given).toString();
  history.replaceState(null, "", `#/${step}${query ? `?${query}` : ""}`);
}
