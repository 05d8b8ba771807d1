// OpenAI's client for Node through the gateway: what it makes of an answer is what it makes of the engine's own, and leaving ends the run.
// contract: C-6 C-29
// field: F-01 F-03

import assert from "node:assert/strict";
import OpenAI, { APIUserAbortError, BadRequestError } from "openai";
import {
  ARGUMENTS, ASKED_FOR_JSON, ENOUGH, FUNCTION, GATEWAY, MODEL, NEEDS_TOOLS, NONSENSE, RIVERS, SCRIPTED, STORY, WEATHER, alike, begun, both,
  cells, ended, fits, key, left, retries, runName, same, version,
} from "./through.mjs";

const does = cells("OpenAI (Node)", version("openai"));

const client = (base) => new OpenAI({ baseURL: `${base}/v1`, apiKey: key(base), maxRetries: retries(base), timeout: 120_000 });
const asked = (messages, more) => ({ model: MODEL, messages, max_tokens: ENOUGH, temperature: 0, ...more });
const named = (base, name) => (base === GATEWAY ? { headers: { "X-Request-Id": name } } : {});

const TOOL = { type: "function", function: FUNCTION };
const IN_PARIS = [
  { role: "user", content: "What is the weather in Rome?" },
  {
    role: "assistant",
    content: "",
    tool_calls: [{ id: "call_1", type: "function", function: { name: "get_weather", arguments: '{"city": "Rome", "unit": "celsius"}' } }],
  },
  { role: "tool", tool_call_id: "call_1", content: "21 degrees" },
  { role: "user", content: "What is the weather in Paris?" },
];
const JSON_SCHEMA = { type: "json_schema", json_schema: { name: "weather", strict: true, schema: WEATHER } };

/** What a user of an answer gets of it. */
const told = ({ choices: [{ message, finish_reason }], usage }) => ({
  text: message.content ?? "",
  calls: (message.tool_calls ?? []).map((call) => [call.function.name, call.function.arguments]),
  finish: finish_reason,
  counts: [usage.prompt_tokens, usage.completion_tokens, usage.total_tokens],
});

/** An answer and a stream that the client puts together, each held against the engine's own. */
async function bothWays(messages, more) {
  const [name, streamed] = [runName(), runName()];
  const [direct, through] = await both((base) => client(base).chat.completions.create(asked(messages, more), named(base, name)));
  assert.deepEqual(same(through), same(direct));
  const asStream = { ...asked(messages, more), stream: true, stream_options: { include_usage: true } };
  const [ours, passed] = await both(async (base) => {
    const stream = client(base).chat.completions.stream(asStream, named(base, streamed));
    const chunks = [];
    for await (const chunk of stream) chunks.push(chunk);
    return { chunks, whole: told(await stream.finalChatCompletion()) };
  });
  assert.deepEqual(passed.whole, ours.whole);
  alike(passed.chunks, ours.chunks);
  const whole = told(through);
  assert.deepEqual({ ...passed.whole, text: passed.whole.text.trim() }, { ...whole, text: whole.text.trim() });
  for (const run of [name, streamed]) await ended(run, whole.counts[0]);
  return whole;
}

does("answer", "an answer is the engine's own", async () => {
  const name = runName();
  const ask = (base) => client(base).chat.completions.create(asked(RIVERS, { max_tokens: 24 }), named(base, name));
  const [direct, through] = await both(ask);
  assert.deepEqual(same(through), same(direct));
  assert(told(through).text && told(through).counts[1] > 0);
  await ended(name, through.usage.prompt_tokens);
});

does("streaming", "a stream is the engine's own", async () => {
  const { text, calls, finish } = await bothWays(RIVERS, { max_tokens: 24 });
  assert(text && calls.length === 0 && ["stop", "length"].includes(finish));
});

for (const choice of ["auto", "required"]) {
  const check = async () => {
    const { calls, finish } = await bothWays(IN_PARIS, { tools: [TOOL], tool_choice: choice });
    assert.equal(calls.length, 1);
    assert.equal(calls[0][0], "get_weather");
    assert.equal(fits(JSON.parse(calls[0][1]), ARGUMENTS).city, "Paris");
    assert.equal(finish, "tool_calls");
  };
  does("tools", `a tool is called (${choice}) in an answer and in a stream`, check, NEEDS_TOOLS);
}

for (const mode of [JSON_SCHEMA, { type: "json_object" }]) {
  const check = async () => {
    const { text, finish } = await bothWays(ASKED_FOR_JSON, { response_format: mode });
    // What a small model puts into an object without a schema may have no end but that of its tokens.
    if (mode !== JSON_SCHEMA && !SCRIPTED && finish === "length") return assert.match(text, /^\s*\{/);
    fits(JSON.parse(text), mode === JSON_SCHEMA ? WEATHER : { type: "object" });
    assert.equal(finish, "stop");
  };
  does("JSON mode", `${mode.type} in an answer and in a stream`, check, NEEDS_TOOLS);
}

does("answer", "what the engine refuses is refused in its own words", async () => {
  const refused = async (base) => {
    const call = client(base).chat.completions.create(asked(RIVERS, NONSENSE));
    const error = await call.then(() => assert.fail("it was answered"), (error) => error);
    assert(error instanceof BadRequestError, String(error));
    return [error.status, same(error.error ?? null), error.message];
  };
  const [direct, through] = await both(refused);
  assert.deepEqual(through, direct);
});

const long = (more) => asked(STORY, { max_tokens: 2500, ignore_eos: true, ...more });

for (const chunks of [1, 12]) {
  does("leaving", `a stream whose controller aborts after ${chunks} chunks`, async () => {
    const name = runName();
    const controller = new AbortController();
    const options = { ...named(GATEWAY, name), signal: controller.signal };
    const stream = await client(GATEWAY).chat.completions.create(long({ stream: true }), options);
    let seen = 0;
    for await (const _ of stream) if (++seen === chunks) controller.abort();
    await left(name);
  });
}

does("leaving", "a loop over a stream that is left", async () => {
  const name = runName();
  for await (const _ of await client(GATEWAY).chat.completions.create(long({ stream: true }), named(GATEWAY, name))) break;
  await left(name);
});

does("leaving", "an abort while the whole answer is awaited", async () => {
  const name = runName();
  const controller = new AbortController();
  const call = client(GATEWAY).chat.completions.create(long(), { ...named(GATEWAY, name), signal: controller.signal });
  const answer = assert.rejects(call, APIUserAbortError);
  await begun();
  controller.abort();
  await answer;
  assert.equal((await left(name, ["client_closed"])).delivery, "none");
});
