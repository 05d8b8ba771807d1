// The server under test, as every test file here sees it: its records, its account, and what must hold of a run whose caller left.
//
// Needs a server at KVIT_TEST_SERVER (`cargo xtask sdk` starts one).

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { afterEach, beforeEach } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

assert(process.env.KVIT_TEST_SERVER, "KVIT_TEST_SERVER names no server: `cargo xtask sdk node` starts one");
export const SERVER = process.env.KVIT_TEST_SERVER.replace(/\/+$/, "");
export const CHAT = `${SERVER}/v1/chat/completions`;
export const STORY = [{ role: "user", content: "Tell me a long story about a lighthouse." }];

/** About 3,000 tokens of prompt, of which nothing is in the prefix index. */
export const essay = () => [
  { role: "user", content: `${randomUUID()} ${"The keeper counted the ships and wrote their names into the book. ".repeat(215)}` },
];

export const runId = () => `node-${randomUUID()}`;

/** A request in the body's own words; longer than any test waits for. */
export const ask = (more = {}) => ({ messages: STORY, max_tokens: 3000, temperature: 0, ignore_eos: true, ...more });

export async function get(path) {
  const answer = await fetch(`${SERVER}${path}`, { signal: AbortSignal.timeout(10_000) });
  assert(answer.ok, `${path}: ${answer.status}`);
  return answer.json();
}

/** The run's record, or null where there is none. */
export async function look(id) {
  const answer = await fetch(`${SERVER}/v1/runs/${id}`, { signal: AbortSignal.timeout(10_000) });
  const body = await answer.json();
  assert(answer.ok || answer.status === 404, `${id}: ${answer.status}`);
  return answer.ok ? body : null;
}

/** Polls until `find` gives something; what it gave last otherwise. */
export async function until(find, patienceMs = 30_000) {
  const end = Date.now() + patienceMs;
  for (;;) {
    const value = await find();
    if (value || Date.now() > end) return value;
    await sleep(10);
  }
}

export async function released(id) {
  let run;
  await until(async () => {
    run = await look(id);
    return run?.released && run.settled;
  });
  assert(run?.released && run.settled, `not released and settled: ${JSON.stringify(run)}`);
  return run;
}

/** Waits until the run is in a state, however long the machine takes to bring it there. */
export async function reached(id, state) {
  let run;
  await until(async () => {
    run = await look(id);
    assert(run?.state !== "ended", `ended before it was ${state}: ${JSON.stringify(run)}`);
    return run?.state === state;
  }, 120_000);
  assert.equal(run?.state, state);
}

// What a caller that reads a stream can have left, and how the kernel shows a closed socket: a reset where bytes had come that nobody read.
const PHASES = ["queued", "prefill", "before_first_token", "decode"];
const LEFT = ["client_closed", "client_reset"];

export function assertGone(run, { phases = PHASES, causes = LEFT } = {}) {
  const shown = JSON.stringify(run);
  assert(run.released && run.settled, shown);
  assert.equal(run.outcome.kind, "cancelled", shown);
  assert(causes.includes(run.outcome.cause), shown);
  assert(phases.includes(run.phase_at_disconnect), shown);
  assert(run.tokens.after_receipt <= 1, shown);
  assert.equal(run.blocks.held, 0, shown);
  assert.equal(run.guarantee, "confirmed", shown);
}

async function rest() {
  const kv = await get("/v1/kv");
  const { queued, running, stopping } = kv.runs;
  return kv.active === 0 && kv.draining === 0 && queued + running + stopping === 0 ? kv : null;
}

async function quiet() {
  const kv = await until(rest);
  assert(kv?.conserved, JSON.stringify(await get("/v1/kv")));
  assert.equal(kv.free + kv.cached, kv.total, JSON.stringify(kv));
  return kv;
}

/** Whatever a test did, each block comes back and the next caller is served. */
export function everythingComesBack() {
  beforeEach(quiet);
  afterEach(async () => {
    await quiet();
    const id = runId();
    const body = JSON.stringify(ask({ messages: [{ role: "user", content: "Name a river." }], max_tokens: 3 }));
    const headers = { "Content-Type": "application/json", "X-Request-Id": id };
    const answer = await (await fetch(CHAT, { method: "POST", headers, body, signal: AbortSignal.timeout(120_000) })).json();
    assert.equal(answer.usage?.completion_tokens, 3, JSON.stringify(answer));
    const run = await released(id);
    assert.equal(`${run.outcome.kind} ${run.delivery}`, "completed complete");
  });
}
