// What every answer of the Responses API must be on the wire: valid for the schema that OpenAI publishes (../openai-responses.schema.json, cut by
// cut_schema.py to what kvit says). The Python tests hold theirs against the same file (../shapes.py).

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import Ajv2020 from "ajv/dist/2020.js";

const PUBLISHED = JSON.parse(readFileSync(new URL("../openai-responses.schema.json", import.meta.url), "utf8"));
const { schemas } = PUBLISHED.components;
// The description requires of one part of an `allOf` what another one names.
const ajv = new Ajv2020({ strict: true, strictRequired: false, allErrors: true });
ajv.addVocabulary(["about", "components"]);
ajv.addSchema(PUBLISHED, "published");

const validator = (name) => ajv.compile({ $ref: `published#/components/schemas/${name}` });
// Events by the type that their schema names.
const EVENTS = new Map(
  Object.keys(schemas)
    .filter((name) => /^Response\w+Event$/.test(name))
    .map((name) => [schemas[name].properties.type.enum[0], validator(name)]),
);
const OBJECTS = new Map([["response", validator("Response")], ["list", validator("ResponseItemList")]]);

/** All properties that a schema and what it refers to name. */
function properties(node) {
  if (node.$ref) return properties(schemas[node.$ref.split("/").at(-1)]);
  return [...Object.keys(node.properties ?? {}), ...(node.allOf ?? []).flatMap(properties)];
}

// What is kvit's own stands in one place; `store` is in OpenAI's answers and examples, and not in its schema.
const RESPONSE = new Set([...properties(schemas.Response), "kvit", "store"]);

function valid(validate, body) {
  assert(validate, `no such answer is published: ${JSON.stringify(body)}`);
  assert(validate(body), `${ajv.errorsText(validate.errors)}: ${JSON.stringify(body)}`);
}

/** Checks an answer's object. */
export function validObject(body) {
  valid(OBJECTS.get(body.object), body);
  if (body.object === "response") assert.deepEqual(Object.keys(body).filter((name) => !RESPONSE.has(name)), [], JSON.stringify(body));
}

/** Checks an event of a stream, and the response in it. */
export function validEvent(body) {
  valid(EVENTS.get(body.type), body);
  if (body.response) validObject(body.response);
}

/** How often what was checked: a check that saw nothing shows nothing. */
export const checked = new Map();

function count(what) {
  checked.set(what, (checked.get(what) ?? 0) + 1);
}

/** Passes a stream on piece by piece, and checks each event once all of it has come. */
function checkedEvents() {
  const decoder = new TextDecoder();
  let rest = "";
  const look = (text) => {
    const events = (rest + text).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const data = event.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5)).join("\n");
      if (!data) continue;
      const body = JSON.parse(data);
      validEvent(body);
      count(body.type);
    }
  };
  return new TransformStream({
    transform(piece, out) {
      look(decoder.decode(piece, { stream: true }));
      out.enqueue(piece);
    },
    flush() {
      look(decoder.decode());
      assert.equal(rest.trim(), "", "a stream ends with a whole event");
    },
  });
}

/** `fetch` that checks each answer from /v1/responses before its caller has it. An error is none of these objects. */
export async function checkedFetch(url, init) {
  const answer = await fetch(url, init);
  if (!answer.ok || !new URL(url).pathname.startsWith("/v1/responses")) return answer;
  if (answer.headers.get("content-type")?.startsWith("text/event-stream")) {
    return new Response(answer.body.pipeThrough(checkedEvents()), { status: answer.status, headers: answer.headers });
  }
  // What a deletion answers is not in the description.
  if (init?.method?.toUpperCase() === "DELETE") return answer;
  const body = await answer.clone().json();
  validObject(body);
  count(body.object);
  return answer;
}
