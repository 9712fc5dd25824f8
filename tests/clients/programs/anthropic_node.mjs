// The Anthropic SDK for Node: whole answers and streams, the history kept by hand, the tool called by hand.
import { client, memory } from "./recipe.mjs";
import { parameters, price, told, turns } from "./talk.mjs";

const messages = [];
const tools = [{ name: "price", description: "The price of a floor covering.", input_schema: parameters }];

async function ask(stream) {
  const wanted = { model: "claude-haiku-4-5", max_tokens: 1000, system: "You help with a renovation.", messages, tools };
  const answer = stream
    ? await client.messages.stream(wanted, memory).finalMessage()
    : await client.messages.create(wanted, memory);
  messages.push({ role: "assistant", content: answer.content });
  return answer.content;
}

for (const { say, stream } of turns) {
  messages.push({ role: "user", content: say });
  let blocks, calls;
  while ((calls = (blocks = await ask(stream)).filter((block) => block.type === "tool_use")).length)
    messages.push({
      role: "user",
      content: calls.map((call) => ({ type: "tool_result", tool_use_id: call.id, content: price(call.input) })),
    });
  told(blocks.map((block) => block.text ?? "").join(""));
}
