// fetch, Node's own and undici's, also over HTTP/2: an AbortController in a stream and while the whole answer is awaited, a body that is
// cancelled, a timeout.
// contract: C-12 C-13 C-15
// field: F-01 F-03 F-08 F-13 F-18

import assert from "node:assert/strict";
import { after, test } from "node:test";
import * as undici from "undici";
import { CHAT, SERVER, STORY, ask, assertGone, essay, everythingComesBack, reached, released, runId } from "./server.mjs";

everythingComesBack();

const STREAMING = { phases: ["prefill", "before_first_token", "decode"] };

// One connection for all its calls: what leaves resets its stream there.
const http2 = new undici.H2CClient(SERVER);
after(() => http2.destroy());

const CALLS = [
  ["Node's fetch", fetch, ["client_closed"]],
  ["undici's fetch", undici.fetch, ["client_closed"]],
  ["undici's fetch over HTTP/2", (url, init) => undici.fetch(url, { ...init, dispatcher: http2 }), ["client_reset"]],
];

for (const [name, call, causes] of CALLS) {
  const post = (id, more, signal) => {
    const headers = { "Content-Type": "application/json", "X-Request-Id": id };
    return call(CHAT, { method: "POST", headers, body: JSON.stringify(ask(more)), signal });
  };

  for (const how of ["abort", "cancel"]) {
    test(`${name}: ${how} in a stream`, async () => {
      const id = runId();
      const controller = new AbortController();
      const answer = await post(id, { stream: true }, controller.signal);
      assert.equal(answer.status, 200);
      const reader = answer.body.getReader();
      for (let reads = 0; reads < 10; reads++) assert(!(await reader.read()).done);
      if (how === "abort") {
        controller.abort();
        await assert.rejects(reader.read(), { name: "AbortError" });
      } else {
        await reader.cancel();
      }
      const run = await released(id);
      assertGone(run, STREAMING);
      assert.equal(run.delivery, "partial");
    });
  }

  for (const [state, messages] of [["decoding", () => STORY], ["prefilling", essay]]) {
    test(`${name}: abort while the whole answer is awaited, ${state}`, async () => {
      const id = runId();
      const controller = new AbortController();
      const answer = assert.rejects(post(id, { messages: messages() }, controller.signal), { name: "AbortError" });
      await reached(id, state);
      controller.abort();
      await answer;
      const run = await released(id);
      assertGone(run, { ...STREAMING, causes });
      assert.equal(run.delivery, "none");
    });
  }

  test(`${name}: a timeout while the whole answer is awaited`, async () => {
    const id = runId();
    await assert.rejects(post(id, {}, AbortSignal.timeout(2000)), { name: "TimeoutError" });
    assertGone(await released(id), { causes });
  });
}
