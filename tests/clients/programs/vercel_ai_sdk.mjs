// The Vercel AI SDK by any API: generateText and streamText, with a tool that runs by itself.
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import { model } from "./recipe.mjs";
import { options, parameters, price, told, turns } from "./talk.mjs";

const tools = { price: tool({ description: "The price of a floor covering.", inputSchema: jsonSchema(parameters), execute: price }) };
const messages = [];

for (const { say, stream } of turns) {
  messages.push({ role: "user", content: say });
  const wanted = { model, system: "You help with a renovation.", messages, tools, stopWhen: stepCountIs(5), providerOptions: { openai: options } };
  const result = stream ? streamText(wanted) : await generateText(wanted);
  told(await result.text);
  messages.push(...(await result.response).messages);
}
