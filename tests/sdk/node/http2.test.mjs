// HTTP/2 with prior knowledge: a stream that is reset ends its own run and no other of its connection; a session's end ends all.
// contract: C-12 C-13 C-14 C-15
// field: F-01 F-13 F-18 F-78

import assert from "node:assert/strict";
import { once } from "node:events";
import http2 from "node:http2";
import { test } from "node:test";
import { SERVER, STORY, ask, assertGone, essay, everythingComesBack, look, reached, released, runId } from "./server.mjs";

everythingComesBack();

const { NGHTTP2_CANCEL } = http2.constants;

async function session() {
  const session = http2.connect(SERVER);
  await once(session, "connect");
  return session;
}

function post(session, id, more) {
  const stream = session.request({
    ":method": "POST", ":path": "/v1/chat/completions", "content-type": "application/json", "x-request-id": id,
  });
  // What the session's end says to a stream is no failure of the test.
  stream.on("error", () => {});
  stream.end(JSON.stringify(ask(more)));
  return stream;
}

for (const [state, messages] of [["decoding", () => STORY], ["prefilling", essay]]) {
  for (const stream of [true, false]) {
    const what = `${stream ? "streaming" : "the whole answer awaited"}, ${state}`;
    test(`a reset stream (${what}) leaves the connection and its neighbour alone`, async () => {
      const connection = await session();
      try {
        const [id, other] = [runId(), runId()];
        const leaving = post(connection, id, { messages: messages(), stream });
        leaving.resume();
        await reached(id, state);
        const staying = post(connection, other, { max_tokens: 30 });
        let text = "";
        staying.setEncoding("utf8").on("data", (piece) => (text += piece));
        leaving.close(NGHTTP2_CANCEL);
        const run = await released(id);
        assertGone(run, { phases: ["prefill", "before_first_token", "decode"], causes: ["client_reset"] });
        assert.equal(run.delivery === "none" || stream, true, JSON.stringify(run));
        if (!staying.readableEnded) await once(staying, "end");
        assert.equal(JSON.parse(text).usage.completion_tokens, 30);
        const neighbour = await released(other);
        assert.equal(`${neighbour.outcome.kind} ${neighbour.delivery}`, "completed complete");
      } finally {
        connection.destroy();
      }
    });
  }
}

test("a session that is destroyed ends every run on it", async () => {
  const connection = await session();
  const ids = [runId(), runId(), runId()];
  try {
    for (const [at, id] of ids.entries()) post(connection, id, { stream: at > 0 }).resume();
    for (const id of ids) await reached(id, "decoding");
  } finally {
    connection.destroy();
  }
  for (const id of ids) assertGone(await released(id), { phases: ["decode"] });
  assert.equal(await look(`${ids[0]}~2`), null);
});
