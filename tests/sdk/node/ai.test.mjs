// Vercel's AI SDK: an abort signal in a stream and while the whole answer is awaited, and a loop that is left without one.
// contract: C-12 C-13 C-15
// field: F-01 F-03 F-13 F-18 F-80

import assert from "node:assert/strict";
import { test } from "node:test";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText } from "ai";
import { SERVER, STORY, assertGone, essay, everythingComesBack, look, reached, released, runId, until } from "./server.mjs";

everythingComesBack();

const kvit = createOpenAICompatible({ name: "kvit", baseURL: `${SERVER}/v1` });
const asked = (id, more) => ({
  model: kvit.chatModel("smollm2-135m-instruct"),
  messages: STORY,
  maxOutputTokens: 3000,
  temperature: 0,
  maxRetries: 0,
  headers: { "X-Request-Id": id },
  providerOptions: { kvit: { ignore_eos: true } },
  onError: () => {},
  ...more,
});

for (const pieces of [1, 20]) {
  test(`a stream whose signal aborts after ${pieces} pieces`, async () => {
    const id = runId();
    const controller = new AbortController();
    let seen = 0;
    for await (const _ of streamText(asked(id, { abortSignal: controller.signal })).textStream) if (++seen === pieces) controller.abort();
    const run = await released(id);
    assertGone(run, { phases: ["before_first_token", "decode"] });
    assert.equal(run.delivery, "partial");
  });
}

test("a stream that is left without its signal goes on, until the signal says so", async () => {
  // The SDK tees what it reads: leaving one branch closes nothing, and no server can notice. Give every call a signal.
  const id = runId();
  const controller = new AbortController();
  for await (const _ of streamText(asked(id, { abortSignal: controller.signal })).textStream) break;
  const { tokens } = await look(id);
  const later = await until(async () => {
    const run = await look(id);
    return (run.state === "ended" || run.tokens.generated > tokens.generated + 20) && run;
  });
  assert.equal(later?.state, "decoding", JSON.stringify(later));
  controller.abort();
  assertGone(await released(id), { phases: ["decode"] });
});

for (const [state, messages] of [["decoding", () => STORY], ["prefilling", essay]]) {
  test(`an abort while the whole answer is awaited, ${state}`, async () => {
    const id = runId();
    const controller = new AbortController();
    const call = generateText(asked(id, { messages: messages(), abortSignal: controller.signal }));
    const answer = assert.rejects(call, { name: "AbortError" });
    await reached(id, state);
    controller.abort();
    await answer;
    const run = await released(id);
    assertGone(run, { phases: ["prefill", "before_first_token", "decode"], causes: ["client_closed"] });
    assert.equal(run.delivery, "none");
  });
}
