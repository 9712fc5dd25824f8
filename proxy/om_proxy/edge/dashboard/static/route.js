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

export function goTo(link) {
  location.hash = link;
}

// Write what a list is filtered by into the address, without a step in the browser's history.
export function replaceQuery(step, values) {
  const given = Object.entries(values).filter(([, value]) => value);
  const query = new URLSearchParams(given).toString();
  history.replaceState(null, "", `#/${step}${query ? `?${query}` : ""}`);
}
