// Ask the API below `v1/`, relative to the page, so that a path in front of the proxy does no harm.
import { announceVisitor, credentialHeaders, keepCredential, keepSession, reportRefusal, sessionHeaders } from "./session.js";

export class ApiError extends Error {
  constructor(status, code, message, param = null) {
    super(toSentence(message));
    this.status = status; // 0: the server did not answer
    this.code = code;
    this.param = param;
  }
}

// The API's messages are parts of a sentence.
function toSentence(message) {
  const text = message.trim();
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;
}

export const LINK_REFUSED = "link";
const UNREACHABLE = "The proxy does not answer. Is it still running?";

export function buildUrl(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined);
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return `v1${path}${text ? `?${text}` : ""}`;
}

// `text`: a body of JSON that is sent as it is. `isTrial`: the credential is only tried, so a refusal
// signs nobody out.
export async function ask(method, path, options = {}) {
  const { query, body, version, headers, signal, isTrial = false } = options;
  const { text = body === undefined ? undefined : JSON.stringify(body) } = options;
  const sent = { ...sessionHeaders(), ...credentialHeaders(), ...headers };
  if (text !== undefined) sent["content-type"] = "application/json";
  if (version !== undefined) sent["if-match"] = `"${version}"`;
  try {
    return await fetchAnswer(buildUrl(path, query), { method, headers: sent, body: text, signal });
  } catch (error) {
    if (error.status === 401 && !isTrial) reportRefusal(error);
    throw error;
  }
}

async function fetchAnswer(url, options) {
  let answer;
  try {
    answer = await fetch(url, { cache: "no-store", credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "unreachable", UNREACHABLE);
  }
  if (answer.ok) return answer;
  throw await readError(answer);
}

// A link that the server printed names its token behind the `#`. Use it up, and show the page where
// the visitor was: `last`, the `#` before. Return whether the address is such a link.
export async function signInByLink(last = "") {
  const token = /^#\/sign-in\/([\w-]+)$/.exec(location.hash)?.[1];
  if (!token) return false;
  history.replaceState(null, "", last.startsWith("#/sign-in/") ? "#/" : last || "#/");
  dispatchEvent(new Event("hashchange"));
  try {
    keepSession(await fetchAnswer("session", { method: "POST", body: token }));
    keepCredential(null);
  } catch (error) {
    announceVisitor(new ApiError(0, LINK_REFUSED, error.message));
  }
  return true;
}

export async function signOut() {
  await fetchAnswer("session", { method: "DELETE" }).catch(() => null); // a server may have none
  keepSession(null);
  keepCredential(null);
}

export async function askJson(method, path, options) {
  const answer = await ask(method, path, options);
  try {
    return await answer.json();
  } catch {
    throw new ApiError(0, "cut", "The answer broke off before its end.");
  }
}

async function readError(answer) {
  try {
    const { error } = await answer.json();
    return new ApiError(answer.status, error.code, error.message, error.param);
  } catch {
    return new ApiError(answer.status, "http", `The server answered ${answer.status}.`);
  }
}

// A browser takes a step of one or two dots out of a path, however it is written. The query carries
// such a name, and the path has this in its place.
const NAME_IN_QUERY = "-";
const isDots = (name) => name === "." || name === "..";
const nameStep = (name) => (isDots(name) ? NAME_IN_QUERY : encodeURIComponent(name));

// A thread's path and the query that says whose it is. A key: {tenant, resource, thread}.
export function threadPath({ thread }, rest = "") {
  return `/threads/${nameStep(thread)}${rest}`;
}

export function threadQuery({ tenant, resource, thread }, more = {}) {
  return { tenant, resource, name: isDots(thread) ? thread : null, ...more };
}

// The same of a resource: {tenant, resource}.
export function resourcePath({ resource }, rest = "") {
  return `/resources/${nameStep(resource)}${rest}`;
}

export function resourceQuery({ tenant, resource }, more = {}) {
  return { tenant, name: isDots(resource) ? resource : null, ...more };
}

export function askThread(method, key, rest = "", { query, ...options } = {}) {
  return askJson(method, threadPath(key, rest), { ...options, query: threadQuery(key, query) });
}

// Return who the visitor is: {isAdmin, hasMetrics, version}. `headers`: a credential to try, else the
// kept one. Where the metrics are is told to an admin alone.
export async function identify(headers) {
  const config = await askJson("GET", "/config", { headers, isTrial: headers !== undefined });
  const metrics = config.items.find(({ name }) => name === "telemetry.metrics");
  return { isAdmin: config.is_complete, hasMetrics: metrics?.value === "true", version: config.program_version };
}
