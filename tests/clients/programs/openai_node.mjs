// The OpenAI SDK for Node: whole answers and streams, the history kept by hand, the tool called by hand.
import { client, memory } from "./recipe.mjs";
import { PRICE, price, told, turns } from "./talk.mjs";

const messages = [{ role: "system", content: "You help with a renovation." }];

async function ask(stream) {
  const wanted = { model: "gpt-5.4-mini", messages, tools: [PRICE] };
  const answer = stream
    ? await client.chat.completions.stream(wanted, memory).finalChatCompletion()
    : await client.chat.completions.create(wanted, memory);
  messages.push(answer.choices[0].message);
  return answer.choices[0].message;
}

for (const { say, stream } of turns) {
  messages.push({ role: "user", content: say });
  let answer = await ask(stream);
  while (answer.tool_calls?.length) {
    for (const call of answer.tool_calls)
      messages.push({ role: "tool", tool_call_id: call.id, content: price(JSON.parse(call.function.arguments)) });
    answer = await ask(stream);
  }
  told(answer.content);
}
