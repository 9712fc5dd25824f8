// Read the request that a visitor pastes, and say in plain words what is wrong with it.

const EMPTY = "Paste a request first.";
const COMMAND = "This is a whole command. Paste only what it sends: the part in braces behind --data or -d.";
const UNFINISHED = "This breaks off before its end. Was everything copied?";
const NO_LIST = `This has no list of messages. A chat request looks like {"messages": [{"role": "user", "content": "…"}]}.`;
const OTHER_API = `This is a request of another API: it has "input" and no "messages". Only /v1/chat/completions has memory.`;
const NO_MESSAGE = "The list of messages is empty.";

// Return {text, messages} of a request, or {trouble}. The text is what was pasted, byte for byte; a
// list alone becomes a request.
export function readPasted(pasted) {
  const text = pasted.trim();
  if (!text) return { trouble: EMPTY };
  if (/^curl\b/.test(text)) return { trouble: COMMAND };
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    return { trouble: describeFault(text, error) };
  }
  if (Array.isArray(value)) return check(`{"messages":${text}}`, value);
  if (value === null || typeof value !== "object") return { trouble: NO_LIST };
  if (value.messages === undefined && value.input !== undefined) return { trouble: OTHER_API };
  return check(text, value.messages);
}

function check(text, messages) {
  if (!Array.isArray(messages)) return { trouble: NO_LIST };
  if (messages.length === 0) return { trouble: NO_MESSAGE };
  const odd = messages.findIndex((message) => typeof message?.role !== "string");
  if (odd >= 0) return { trouble: `Message ${odd + 1} of ${messages.length} has no "role", such as "user" or "assistant".` };
  return { text, messages };
}

function describeFault(text, { message }) {
  if (!/^[[{"]/.test(text)) return `This is no JSON: it begins with “${text.slice(0, 12)}”. It should begin with { or [.`;
  if (/end of JSON|unterminated/i.test(message)) return UNFINISHED;
  const [, position] = /position (\d+)/.exec(message) ?? [];
  const [, quoted = ""] = /, (?:\.\.\.)?"(.*)"(?:\.\.\.)? is not valid JSON/su.exec(message) ?? [];
  const at = Math.max(0, position === undefined ? text.indexOf(quoted) + quoted.length / 2 : Number(position));
  const line = text.slice(0, at).split("\n").length;
  const near = (quoted || text.slice(Math.max(0, at - 12), at + 12)).trim();
  return `This is no JSON: line ${line} cannot be read, near “${near}”.`;
}
