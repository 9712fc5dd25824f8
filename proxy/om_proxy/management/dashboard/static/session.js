// Keep the credential until this tab is closed. A link that the server printed opens a session
// instead, whose cookie no script can read.

const STORAGE_KEY = "om-credential";
const SESSION_HEADER = "x-om-session";
const listeners = new Set();
const refusalListeners = new Set();
let credential = readStored();

function readStored() {
  try {
    return sessionStorage.getItem(STORAGE_KEY);
  } catch {
    return null; // this browser has no storage
  }
}

// The same header for the admin token and for a key of the visitor's own.
export function headersOf(text) {
  return { authorization: `Bearer ${text}` };
}

// Keep the page's half of a session: the cookie alone, which all ports of a machine see, opens nothing.
export function keepSession(answer) {
  try {
    if (answer) localStorage.setItem(SESSION_HEADER, answer.headers.get(SESSION_HEADER));
    else localStorage.removeItem(SESSION_HEADER);
  } catch {
    // without storage nobody is signed in by a link
  }
}

export function sessionHeaders() {
  try {
    const half = localStorage.getItem(SESSION_HEADER);
    return half ? { [SESSION_HEADER]: half } : {};
  } catch {
    return {};
  }
}

let trialKey = null; // of a page that asks as somebody else; never stored

export function setTrialKey(key) {
  trialKey = key;
}

export const ownKey = () => credential;

export function credentialHeaders() {
  const text = trialKey ?? credential;
  return text ? headersOf(text) : {};
}

export function hasCredential() {
  return credential !== null;
}

export function keepCredential(next) {
  credential = next;
  try {
    if (next) sessionStorage.setItem(STORAGE_KEY, next);
    else sessionStorage.removeItem(STORAGE_KEY);
  } catch {
    // without storage it is kept in memory only
  }
  announceVisitor();
}

// Another visitor may be signed in now. `refusal`: why a link signs nobody in.
export function announceVisitor(refusal = null) {
  listeners.forEach((tell) => tell(refusal));
}

// `who`: what `identify` returned. Without a credential, a session alone makes an admin.
export function isSignedIn(who) {
  return credential !== null || who.isAdmin;
}

export function onCredentialChange(tell) {
  listeners.add(tell);
}

// The server refused the credential that was sent, or asked for one.
export function reportRefusal(error) {
  refusalListeners.forEach((tell) => tell(error));
}

export function onRefusal(tell) {
  refusalListeners.add(tell);
}
