// One message of a conversation.
import { formatClock, formatFull, messageText } from "../format.js";
import { Text } from "../parts/basics.js";
import { html } from "../view.js";

const ROLES = {
  user: "User",
  assistant: "Assistant",
  tool: "Tool result",
  function: "Tool result",
  system: "Instructions",
  developer: "Instructions",
};

export function nameRole(role) {
  return ROLES[role] ?? String(role);
}

// A line of the admin API as `Message` shows it. Of another API than chat its JSON is the text.
export function readMessage({ raw, role, api, excerpt }) {
  if (raw && api === "chat") return raw;
  return { role, content: raw ? JSON.stringify(raw, null, 2) : excerpt };
}

// `children` stand at the end of its first line, `more` below its text.
export function Message({ message, api = "chat", number, at, kind = "", more, children }) {
  const role = message?.role;
  return html`<div class=${`message ${ROLES[role] ? role : ""} ${kind}`}>
    <div class="message-role"><span>${nameRole(role)}</span>
      ${api !== "chat" && html`<span class="number muted">${api}</span>`}
      ${number !== undefined && html`<span class="number muted">no. ${number}</span>`}
      ${at !== undefined && html`<time class="number muted" datetime=${new Date(at * 1000).toISOString()}
        title=${formatFull(at)}>${formatClock(at)}</time>`}
      <span class="message-end">${children}</span></div>
    <${Text} text=${messageText(message)} />
    ${more}
  </div>`;
}
