// What the JavaScript programs share: whom they hear, whom they tell, and the tool they lend the model.
import { readFileSync } from "node:fs";

export const { turns, options } = JSON.parse(readFileSync("turns.json", "utf8"));
export const told = (answer) => console.log(JSON.stringify({ answer }));
export const price = ({ item }) => `${item}: ${20 + 3 * item.length}.90 euros a square metre, in stock, two days`;
export const parameters = { type: "object", properties: { item: { type: "string" } }, required: ["item"] };
export const PRICE = { type: "function", function: { name: "price", description: "The price of a floor covering.", parameters } };
