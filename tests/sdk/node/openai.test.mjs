// OpenAI's client for Node: an AbortController in a stream and while the whole answer is awaited, a loop that is left, and its silent
// retries.
// contract: C-1 C-12 C-13 C-15
// field: F-01 F-03 F-08 F-13 F-18

import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI, { APIConnectionTimeoutError, APIUserAbortError } from "openai";
import { SERVER, STORY, ask, assertGone, essay, everythingComesBack, look, reached, released, runId } from "./server.mjs";

everythingComesBack();

const client = new OpenAI({ baseURL: `${SERVER}/v1`, apiKey: "none", maxRetries: 0, timeout: 120_000 });
const create = (id, more, options) =>
  client.chat.completions.create(ask({ model: "", ...more }), { headers: { "X-Request-Id": id }, ...options });

for (const events of [1, 20]) {
  test(`a loop over a stream that is left after ${events} events`, async () => {
    const id = runId();
    let seen = 0;
    for await (const _ of await create(id, { stream: true })) if (++seen > events) break;
    assertGone(await released(id));
  });

  test(`a stream whose controller aborts after ${events} events`, async () => {
    const id = runId();
    const controller = new AbortController();
    let seen = 0;
    for await (const _ of await create(id, { stream: true }, { signal: controller.signal })) if (++seen === events) controller.abort();
    assertGone(await released(id));
  });
}

for (const [state, messages] of [["decoding", () => STORY], ["prefilling", essay]]) {
  test(`an abort while the whole answer is awaited, ${state}`, async () => {
    const id = runId();
    const controller = new AbortController();
    const answer = assert.rejects(create(id, { messages: messages() }, { signal: controller.signal }), APIUserAbortError);
    await reached(id, state);
    controller.abort();
    await answer;
    const run = await released(id);
    assertGone(run, { phases: ["prefill", "before_first_token", "decode"], causes: ["client_closed"] });
    assert.equal(run.delivery, "none");
  });
}

test("two silent retries are three runs, and each is released", async () => {
  const id = runId();
  await assert.rejects(create(id, {}, { timeout: 2000, maxRetries: 2 }), APIConnectionTimeoutError);
  let generated = 0;
  for (const name of [id, `${id}~2`, `${id}~3`]) {
    const run = await released(name);
    assertGone(run, { causes: ["client_closed"] });
    assert.equal(run.delivery, "none");
    generated += run.tokens.generated;
  }
  assert.equal(await look(`${id}~4`), null);
  console.log(`three tries generated ${generated} tokens, of which the caller has none`);
});
