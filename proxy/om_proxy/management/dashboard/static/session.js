// Keep the credential: in memory, and for this tab if the visitor ticks it. No cookie, so no other
// site can use it.

const STORAGE_KEY = "om-credential";
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

export function credentialHeaders() {
  return credential ? headersOf(credential) : {};
}

export function hasCredential() {
  return credential !== null;
}

export function keepCredential(next, isRemembered) {
  credential = next;
  try {
    if (next && isRemembered) sessionStorage.setItem(STORAGE_KEY, next);
    else sessionStorage.removeItem(STORAGE_KEY);
  } catch {
    // without storage it is kept in memory only
  }
  listeners.forEach((tell) => tell());
}

// Return a function that ends the subscription.
export function onCredentialChange(tell) {
  listeners.add(tell);
  return () => listeners.delete(tell);
}

// The server refused the credential that was sent, or asked for one.
export function reportRefusal(error) {
  refusalListeners.forEach((tell) => tell(error));
}

export function onRefusal(tell) {
  refusalListeners.add(tell);
  return () => refusalListeners.delete(tell);
}
