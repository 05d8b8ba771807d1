// The Responses API as OpenAI's client for Node drives it: waited for, streamed, left in the background, polled, resumed, cancelled, deleted.
// Every object and every event is held against the published schema as it comes in, before the client reads it.
// contract: C-8 C-13 C-25 C-26
// field: F-01

import assert from "node:assert/strict";
import { after, test } from "node:test";
import OpenAI, { BadRequestError, ConflictError, NotFoundError } from "openai";
import { SERVER, everythingComesBack, released, runId, until } from "./server.mjs";
import { checked, checkedFetch, validEvent, validObject } from "./shapes.mjs";

everythingComesBack();

const client = new OpenAI({ baseURL: `${SERVER}/v1`, apiKey: "none", maxRetries: 0, timeout: 120_000, fetch: checkedFetch });
const { id: model } = (await client.models.list()).data[0];
const TERMINAL = ["response.completed", "response.failed", "response.incomplete"];

const ask = (more = {}) => ({ model, input: "Name three rivers, one sentence each.", temperature: 0, max_output_tokens: 24, ...more });
// Far more than is waited for: such a run cannot end by itself meanwhile.
const long = (more = {}) => ask({ max_output_tokens: 3000, ignore_eos: true, ...more });
const options = (id) => ({ headers: { "X-Request-Id": id } });
const textOf = (events) => events.filter((event) => event.type === "response.output_text.delta").map((event) => event.delta).join("");

async function all(stream) {
  const events = [];
  for await (const event of await stream) events.push(event);
  return events;
}

async function ended(id) {
  let response;
  await until(async () => {
    response = await client.responses.retrieve(id);
    return !["queued", "in_progress"].includes(response.status);
  }, 120_000);
  return response;
}

test("an answer that is waited for, and a stream that says the same", async () => {
  const id = runId();
  const whole = await client.responses.create(ask(), options(id));
  assert.equal(whole.id, `resp_${id}`);
  assert(["completed", "incomplete"].includes(whole.status) && whole.output_text, JSON.stringify(whole));
  assert.equal((await released(id)).delivery, "complete");
  const events = await all(client.responses.create(ask({ stream: true })));
  assert.deepEqual(events.map((event) => event.sequence_number), events.map((_, i) => i));
  assert.deepEqual(events.map((event) => TERMINAL.includes(event.type)), events.map((_, i) => i === events.length - 1));
  assert.equal(textOf(events), whole.output_text);
  const final = await client.responses.stream(ask()).finalResponse();
  assert.equal(final.output_text, whole.output_text);
});

for (const events of [1, 12]) {
  test(`an interactive stream that is left after ${events} events`, async () => {
    const id = runId();
    let seen = 0;
    for await (const _ of await client.responses.create(long({ stream: true }), options(id))) if (++seen > events) break;
    const run = await released(id);
    assert.equal(run.outcome.kind, "cancelled", JSON.stringify(run));
    assert.equal(run.blocks.held, 0);
    assert.equal((await ended(`resp_${id}`)).status, "cancelled");
  });
}

test("a background response is polled to its end", async () => {
  const id = runId();
  const response = await client.responses.create(ask({ background: true }), options(id));
  assert(["queued", "in_progress"].includes(response.status), response.status);
  const done = await ended(response.id);
  assert(["completed", "incomplete"].includes(done.status), JSON.stringify(done));
  assert.equal(done.output_text, (await client.responses.create(ask())).output_text);
  assert.equal((await released(id)).delivery, "none");
});

for (const after of [0, 3, 20]) {
  test(`a background stream is resumed behind number ${after}`, async () => {
    const first = [];
    for await (const event of await client.responses.create(ask({ background: true, stream: true, max_output_tokens: 64, ignore_eos: true }))) {
      first.push(event);
      if (event.sequence_number === after) break;
    }
    const { id } = first[0].response;
    const rest = await all(client.responses.retrieve(id, { stream: true, starting_after: after }));
    const whole = await all(client.responses.retrieve(id, { stream: true }));
    assert.deepEqual([...first, ...rest], whole);
    assert(TERMINAL.includes(whole.at(-1).type));
    assert.equal(textOf(whole), (await ended(id)).output_text);
  });
}

test("a background response is cancelled twice, and its stream ends and closes", async () => {
  const id = runId();
  const response = await client.responses.create(long({ background: true }), options(id));
  const stream = await client.responses.retrieve(response.id, { stream: true });
  const read = [];
  let first;
  for await (const event of stream) {
    read.push(event);
    if (!first && event.type === "response.output_text.delta") first = await client.responses.cancel(response.id);
  }
  assert.equal(first.status, "cancelled");
  assert.equal(first.error, null);
  assert.equal(read.at(-1).type, "response.failed");
  assert.equal(read.at(-1).response.status, "cancelled");
  // The client adds `output_text` to what it creates and retrieves, and not to what it cancels.
  assert.equal(textOf(read), first.output[0].content[0].text);
  assert.deepEqual(await client.responses.cancel(response.id), first);
  const { output_text, ...retrieved } = await client.responses.retrieve(response.id);
  assert.equal(output_text, textOf(read));
  // What it did outside is told by the cancel only.
  assert.deepEqual(first.kvit.effects, []);
  assert.deepEqual({ ...retrieved, kvit: { ...retrieved.kvit, effects: [] } }, { ...first });
  const run = await released(id);
  assert.equal(run.outcome.cause, "cancel_requested");
  assert.equal(run.blocks.held, 0);
});

test("only what is over is deleted, and then it is gone", async () => {
  const response = await client.responses.create(long({ background: true }));
  await assert.rejects(client.responses.delete(response.id), ConflictError);
  await client.responses.cancel(response.id);
  await client.responses.delete(response.id);
  await assert.rejects(client.responses.retrieve(response.id), NotFoundError);
  await assert.rejects(client.responses.cancel(response.id), NotFoundError);
  await assert.rejects(client.responses.create(ask({ previous_response_id: response.id })), BadRequestError);
});

test("a conversation goes on behind a response, and its input is listed", async () => {
  const first = await client.responses.create(ask());
  const second = await client.responses.create(ask({ previous_response_id: first.id, input: "And a mountain?" }));
  const turns = [{ role: "user", content: ask().input }, ...first.output, { role: "user", content: "And a mountain?" }];
  const said = await client.responses.create(ask({ input: turns }));
  assert.equal(second.output_text, said.output_text);
  const items = [];
  for await (const item of client.responses.inputItems.list(said.id, { order: "asc", limit: 2 })) items.push(item);
  assert.deepEqual(items.map((item) => item.role), ["user", "assistant", "user"]);
});

test("the checks see what is broken", async () => {
  const { output_text, ...response } = await client.responses.create(ask());
  const delta = (await all(client.responses.create(ask({ stream: true })))).find((event) => event.type === "response.output_text.delta");
  validObject(response);
  validEvent(delta);
  for (const name of ["id", "object", "created_at", "error", "output", "tools", "model", "metadata"]) {
    const { [name]: _, ...broken } = response;
    assert.throws(() => validObject(broken), assert.AssertionError, name);
  }
  for (const more of [{ status: "done" }, { created_at: "now" }, { usage: null }, { tools: [{ type: "function" }] }, { extra: 1 }]) {
    assert.throws(() => validObject({ ...response, ...more }), assert.AssertionError, JSON.stringify(more));
    assert.throws(() => validEvent({ type: "response.completed", sequence_number: 9, response: { ...response, ...more } }), assert.AssertionError);
  }
  for (const name of ["type", "sequence_number", "item_id", "delta", "logprobs", "output_index", "content_index"]) {
    const { [name]: _, ...broken } = delta;
    assert.throws(() => validEvent(broken), assert.AssertionError, name);
  }
});

after(() => {
  console.log("checked against the published schema:", Object.fromEntries(checked));
  for (const what of ["response", "list", "response.created", "response.output_text.delta", ...TERMINAL.filter((type) => type !== "response.completed")])
    assert(checked.get(what) > 0, `no ${what} was checked`);
});
