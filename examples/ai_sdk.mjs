// A thread with the AI SDK, by the Responses API: the list of messages grows, the proxy keeps the
// prompt bounded.
//
// Needs a running proxy (`om-proxy serve`), OPENAI_API_KEY, and `npm install ai @ai-sdk/openai`.
// Run again under the same thread id, it goes on with the old conversation: a new one needs a new
// id.
import { createOpenAI } from "@ai-sdk/openai";
import { generateText } from "ai";

const openai = createOpenAI({
  baseURL: process.env.OPENAI_BASE_URL ?? "http://127.0.0.1:8400/v1",
  headers: { "X-OM-Thread": "sailing-trip", "X-OM-Resource": "user-42" },
});

const messages = [];
for (const text of ["Our boat is 9 m long.", "Berth 14 is 11 m long.", "How much room is left?"]) {
  messages.push({ role: "user", content: text });
  const result = await generateText({
    model: openai("gpt-5.4-mini"),
    system: "You help plan a trip.",
    messages,
  });
  messages.push(...(await result.response).messages); // the reply, with calls of tools
  console.log(`you: ${text}\nmodel: ${result.text}\n`);
}
