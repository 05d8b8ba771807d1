// Vercel's AI SDK through the gateway: text, streamed text, tool calls and objects are the engine's own, and its signal ends the run.
// contract: C-6 C-29
// field: F-01 F-03

import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, generateObject, generateText, jsonSchema, stepCountIs, streamObject, streamText, tool } from "ai";
import {
  ARGUMENTS, ASKED_FOR_JSON, ENOUGH, FUNCTION, GATEWAY, MODEL, NEEDS_TOOLS, RIVERS, SCRIPTED, STORY, WEATHER, begun, both, cells, ended,
  fits, key, left, retries, runName, version,
} from "./through.mjs";

const does = cells("Vercel AI SDK", version("ai"));

const engine = (base) =>
  createOpenAICompatible({
    name: "engine",
    baseURL: `${base}/v1`,
    apiKey: key(base),
    includeUsage: true,
    supportsStructuredOutputs: true,
  }).chatModel(MODEL);
const asked = (base, name, more) => ({
  model: engine(base),
  messages: RIVERS,
  maxOutputTokens: ENOUGH,
  temperature: 0,
  maxRetries: retries(base),
  headers: base === GATEWAY ? { "X-Request-Id": name } : {},
  ...more,
});
const counts = ({ inputTokens, outputTokens, totalTokens }) => {
  assert(outputTokens > 0 && totalTokens === inputTokens + outputTokens);
  return { inputTokens, outputTokens, totalTokens };
};

const get_weather = (more) => tool({ description: FUNCTION.description, inputSchema: jsonSchema(ARGUMENTS), strict: true, ...more });
const IN_PARIS = [
  { role: "user", content: "What is the weather in Rome?" },
  {
    role: "assistant",
    content: [{ type: "tool-call", toolCallId: "call_1", toolName: "get_weather", input: { city: "Rome", unit: "celsius" } }],
  },
  {
    role: "tool",
    content: [{ type: "tool-result", toolCallId: "call_1", toolName: "get_weather", output: { type: "text", value: "21 degrees" } }],
  },
  { role: "user", content: "What is the weather in Paris?" },
];

does("answer", "a text is the engine's own", async () => {
  const name = runName();
  const [direct, through] = await both(async (base) => {
    const { text, finishReason, usage } = await generateText(asked(base, name, { maxOutputTokens: 24 }));
    return { text, finishReason, usage: counts(usage) };
  });
  assert.deepEqual(through, direct);
  assert(through.text);
  await ended(name, through.usage.inputTokens);
});

/** What a stream brings, in the order of its parts. */
async function read(stream) {
  const calls = [];
  let [text, streamed] = ["", ""];
  for await (const part of stream.fullStream) {
    assert.notEqual(part.type, "error", String(part.error));
    if (part.type === "text-delta") text += part.text;
    if (part.type === "tool-input-delta") streamed += part.delta;
    if (part.type === "tool-call") calls.push([part.toolName, part.input]);
  }
  return { text, streamed, calls, finishReason: await stream.finishReason, usage: counts(await stream.usage) };
}

does("streaming", "a stream is the engine's own", async () => {
  const name = runName();
  const [direct, through] = await both((base) => read(streamText(asked(base, name, { maxOutputTokens: 24 }))));
  assert.deepEqual(through, direct);
  const { text } = await generateText(asked(GATEWAY, runName(), { maxOutputTokens: 24 }));
  assert.equal(through.text, text);
  await ended(name);
});

const withTools = (base, name, more) =>
  asked(base, name, { messages: IN_PARIS, tools: { get_weather: get_weather() }, toolChoice: "required", ...more });

const called = async () => {
  const name = runName();
  const [direct, through] = await both(async (base) => {
    const { toolCalls, finishReason, usage } = await generateText(withTools(base, name));
    return { calls: toolCalls.map(({ toolName, input }) => [toolName, input]), finishReason, usage: counts(usage) };
  });
  assert.deepEqual(through, direct);
  assert.equal(through.finishReason, "tool-calls");
  assert.equal(through.calls[0][0], "get_weather");
  assert.equal(fits(through.calls[0][1], ARGUMENTS).city, "Paris");
  await ended(name);
};
does("tools", "a tool is called", called, NEEDS_TOOLS);

const streamedCall = async () => {
  const name = runName();
  const [direct, through] = await both((base) => read(streamText(withTools(base, name))));
  assert.deepEqual(through, direct);
  assert.equal(through.finishReason, "tool-calls");
  assert.equal(through.calls.length, 1);
  assert.equal(fits(through.calls[0][1], ARGUMENTS).city, "Paris");
  assert.deepEqual(JSON.parse(through.streamed), through.calls[0][1]);
  await ended(name);
};
does("tools", "a call is streamed in pieces", streamedCall, NEEDS_TOOLS);

const loop = async () => {
  const asks = [];
  const tools = { get_weather: get_weather({ execute: async (input) => (asks.push(input), "21 degrees") }) };
  const done = await generateText(withTools(GATEWAY, runName(), { tools, toolChoice: "auto", stopWhen: stepCountIs(2) }));
  assert.equal(asks[0].city, "Paris");
  assert.equal(done.steps.length, 2);
  assert.equal(done.steps[0].toolResults[0].output, "21 degrees");
  // What a small model says to it is its own affair.
  if (SCRIPTED) assert.equal(done.finishReason, "stop");
};
does("tools", "what a tool said goes back, and the next answer comes", loop, NEEDS_TOOLS);

const forJson = (base, name, more) => asked(base, name, { messages: ASKED_FOR_JSON, ...more });
const weather = () => jsonSchema(WEATHER, { validate: (value) => ({ success: true, value: fits(value, WEATHER) }) });

/** Ways to ask for an object. */
const OBJECTS = {
  generateObject: async (base, name) => (await generateObject(forJson(base, name, { schema: weather() }))).object,
  streamObject: async (base, name) => {
    const stream = streamObject(forJson(base, name, { schema: weather() }));
    let last;
    for await (const part of stream.partialObjectStream) last = part;
    assert.deepEqual(last, await stream.object);
    return last;
  },
  "generateText with an output": async (base, name) =>
    (await generateText(forJson(base, name, { output: Output.object({ schema: weather() }) }))).output,
};
for (const [how, ask] of Object.entries(OBJECTS)) {
  const check = async () => {
    const name = runName();
    const [direct, through] = await both((base) => ask(base, name));
    assert.deepEqual(through, direct);
    assert.equal(fits(through, WEATHER).city, "Paris");
    await ended(name);
  };
  does("JSON mode", `${how}: an object that fits`, check, NEEDS_TOOLS);
}

const leaving = (name, signal) =>
  asked(GATEWAY, name, {
    messages: STORY,
    maxOutputTokens: 2500,
    abortSignal: signal,
    providerOptions: { engine: { ignore_eos: true } },
    onError: () => {},
  });

for (const pieces of [1, 12]) {
  does("leaving", `a stream whose signal aborts after ${pieces} pieces`, async () => {
    const name = runName();
    const controller = new AbortController();
    let seen = 0;
    for await (const _ of streamText(leaving(name, controller.signal)).textStream) if (++seen === pieces) controller.abort();
    assert.equal((await left(name)).delivery, "partial");
  });
}

does("leaving", "an abort while the whole answer is awaited", async () => {
  const name = runName();
  const controller = new AbortController();
  const answer = assert.rejects(generateText(leaving(name, controller.signal)), { name: "AbortError" });
  await begun();
  controller.abort();
  await answer;
  assert.equal((await left(name, ["client_closed"])).delivery, "none");
});
