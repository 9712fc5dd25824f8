// Read server-sent events by `fetch`: an EventSource can send no credential.
import { ask } from "./api.js";

const FIRST_WAIT_S = 1;
const LONGEST_WAIT_S = 30;

// Call `onEvent({id, type, data})` for each event until the returned function is called. A stream
// that breaks off is opened again behind the last event. `onState`: "open", or an error.
export function followEvents(path, { query, after = null, onEvent, onState }) {
  const control = new AbortController();
  let lastId = after;
  const run = async () => {
    let wait_s = FIRST_WAIT_S;
    while (!control.signal.aborted) {
      try {
        const headers = { accept: "text/event-stream" };
        if (lastId !== null) headers["last-event-id"] = lastId;
        const answer = await ask("GET", path, { query, headers, signal: control.signal });
        onState("open");
        wait_s = FIRST_WAIT_S;
        for await (const event of readEvents(answer.body)) {
          lastId = event.id ?? lastId;
          onEvent(event);
        }
      } catch (error) {
        if (control.signal.aborted) return;
        onState(error);
      }
      await new Promise((resolve) => setTimeout(resolve, wait_s * 1000));
      wait_s = Math.min(LONGEST_WAIT_S, wait_s * 2);
    }
  };
  run();
  return () => control.abort();
}

async function* readEvents(body) {
  const decoder = new TextDecoder();
  const reader = body.getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      rest += decoder.decode(value, { stream: true });
      const blocks = rest.split(/\r\n\r\n|\n\n|\r\r/);
      rest = blocks.pop();
      for (const block of blocks) {
        const event = parseBlock(block);
        if (event) yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => null); // it may have ended already
  }
}

// Return the event of one block; null for a block of comments.
export function parseBlock(block) {
  const event = { id: null, type: "message", data: "" };
  const data = [];
  for (const line of block.split(/\r\n|\n|\r/)) {
    const [, name, value] = /^([^:]*):? ?(.*)$/s.exec(line);
    if (name === "id") event.id = value;
    else if (name === "event") event.type = value;
    else if (name === "data") data.push(value);
  }
  if (data.length === 0 && event.type === "message") return null;
  event.data = data.join("\n");
  return event;
}
