// The OpenAI SDK for Node by the Responses API: whole answers and streams, the history kept by hand or by the server, the tool called by hand.
import { client, memory } from "./recipe.mjs";
import { options, PRICE, price, told, turns } from "./talk.mjs";

const { previous: isKeptByServer, ...more } = options;
let input = [];
const tools = [{ type: "function", strict: false, ...PRICE.function }];

async function ask(stream) {
  const wanted = { model: "gpt-5.4-mini", instructions: "You help with a renovation.", input, tools, ...more };
  const answer = stream
    ? await client.responses.stream(wanted, memory).finalResponse()
    : await client.responses.create(wanted, memory);
  if (isKeptByServer) [more.previous_response_id, input] = [answer.id, []];
  else input.push(...answer.output);
  return answer;
}

for (const { say, stream } of turns) {
  input.push({ role: "user", content: say });
  let answer, calls;
  while ((calls = (answer = await ask(stream)).output.filter((item) => item.type === "function_call")).length)
    for (const { call_id, arguments: given } of calls)
      input.push({ type: "function_call_output", call_id, output: price(JSON.parse(given)) });
  told(answer.output_text);
}
