// What the tests in this folder ask of an engine, directly and through the gateway in front of it, and what must hold of both answers; the
// twin of ../../upstream/through.py.
//
// Needs KVIT_TEST_SERVER (the gateway), KVIT_TEST_UPSTREAM (the engine) and KVIT_TEST_KIND: which scripted engine it is, `kvit`, or nothing
// for a real one of somebody's. Where a gateway of others stands before the engine, KVIT_TEST_UPSTREAM is that one, KVIT_TEST_HOP says which,
// and KVIT_TEST_BEHIND is the engine. KVIT_TEST_KEY_FILE has the key that it takes (`cargo xtask sdk upstream` names them all).

import assert from "node:assert/strict";
import { appendFileSync, readFileSync } from "node:fs";
import { test } from "node:test";
import Ajv from "ajv";
import { SERVER, get, look, until } from "../server.mjs";

assert(process.env.KVIT_TEST_UPSTREAM, "KVIT_TEST_UPSTREAM names no engine: `cargo xtask sdk upstream` says how");
export const GATEWAY = SERVER;
export const ENGINE = process.env.KVIT_TEST_UPSTREAM.replace(/\/+$/, "");
export const KIND = process.env.KVIT_TEST_KIND ?? "";
const HOP = process.env.KVIT_TEST_HOP ?? "";
const BEHIND = (process.env.KVIT_TEST_BEHIND || ENGINE).replace(/\/+$/, "");
const NO_KEY = "none";
const KEY = process.env.KVIT_TEST_KEY_FILE ? readFileSync(process.env.KVIT_TEST_KEY_FILE, "utf8").trim() : NO_KEY;
/** Answers to one request are the same; and all of what they say, unless another gateway names and dates them. */
export const SCRIPTED = !["", "kvit"].includes(KIND);
export const NEEDS_TOOLS = KIND === "kvit" && "kvit serve has no tool calls and no JSON mode yet";

const models = await until(async () => (await get("/v1/models")).data[0]);
assert(models, `the gateway ${GATEWAY} has met no engine at ${ENGINE}`);
export const MODEL = models.id;

/** What an engine refuses. Ollama reads over a format that it does not know. */
export const NONSENSE = KIND === "ollama" ? { messages: [] } : { response_format: { type: "nonsense" } };

export const RIVERS = [{ role: "user", content: "Name three rivers, one sentence each." }];
export const STORY = [{ role: "user", content: "Tell me a long story about a lighthouse." }];
export const ASKED_FOR_JSON = [{ role: "user", content: "Describe the weather in Paris as JSON." }];
const CITY = { type: "string", enum: ["Paris", "Rome", "Oslo"] };
const object = (properties) => ({ type: "object", properties, required: Object.keys(properties), additionalProperties: false });
export const WEATHER = object({ city: CITY, degrees: { type: "integer" } });
export const ARGUMENTS = object({ city: CITY, unit: { type: "string", enum: ["celsius", "fahrenheit"] } });
export const FUNCTION = { name: "get_weather", description: "The weather of a city", parameters: ARGUMENTS, strict: true };
/** Where an answer is to come to an end by itself. */
export const ENOUGH = 200;

const ajv = new Ajv();

/** A value that fits. */
export function fits(value, schema) {
  assert(ajv.validate(schema, value), `${ajv.errorsText()}: ${JSON.stringify(value)}`);
  return value;
}

/** The gateway's callers have none: it has that of the engine. */
export const key = (base) => (base === GATEWAY ? NO_KEY : KEY);

/**
 * How often a client asks again. Of the gateway it is never to need that; `llama-server` closes a connection behind a stream although it
 * says that it keeps it, and a client that asks it directly may be cut off.
 */
export const retries = (base) => (base === GATEWAY ? 0 : 2);

let runs = 0;
export const runName = () => `through-node-${process.pid}-${++runs}-${Date.now()}`;

/** `ask` of the engine and of the gateway. The engine is asked twice: what it computes may depend on what it has kept of a prompt. */
export async function both(ask) {
  await ask(ENGINE);
  return [await ask(ENGINE), await ask(GATEWAY)];
}

// What differs between any two answers of one engine: names, times, and how much of the prompt was known.
const OWN = new Set(["id", "created", "timings", "metrics", "prompt_tokens_details", "kvit"]);

/** An answer without what is its own. */
export const same = (value) => JSON.parse(JSON.stringify(value, (key, part) => (OWN.has(key) ? undefined : part)));

/**
 * Holds what was passed on against what a script has said to somebody else, too. Of a real engine that is not asked: it may put two tokens
 * into one event when it is slow to send.
 */
export function alike(passed, direct) {
  if (SCRIPTED) assert.deepEqual(HOP ? same(passed) : passed, HOP ? same(direct) : direct);
}

/** The record of a run once nothing of it can change any more. */
async function settled(name) {
  let run;
  await until(async () => (run = await look(name))?.settled);
  assert(run?.settled, `not settled: ${JSON.stringify(run)}`);
  return run;
}

const LEFT = ["client_closed", "client_reset"];

/** The record of a run that was answered to its end. What the engine said of its prompt stands in it. */
export async function ended(name, promptTokens) {
  const run = await settled(name);
  assert.equal(run.outcome.kind, "completed", JSON.stringify(run));
  // Clients close when they have read the end of a stream. On a busy machine that can be seen before the gateway has told the run's end.
  assert(run.delivery === "complete" || run.superseded.some((cause) => LEFT.includes(cause)), JSON.stringify(run));
  assert.equal(run.tokens.delivered, run.tokens.generated, JSON.stringify(run));
  if (promptTokens) assert.equal(run.tokens.prompt, promptTokens, JSON.stringify(run));
  return run;
}

// Counters of those that run or wait.
const RUNNING =
  /^(?:vllm:num_requests_(?:running|waiting)\{|llamacpp:requests_(?:processing|deferred) |sglang:num_(?:running|queue)_reqs\{).*?(\S+)$/gm;

/** How many requests the engine has, by its own counters. */
async function busy() {
  const ask = async (path) => fetch(`${BEHIND}${path}`, { signal: AbortSignal.timeout(120_000) });
  if (KIND === "kvit") return Object.values((await (await ask("/v1/kv")).json()).runs).reduce((sum, count) => sum + count, 0);
  if (SCRIPTED) return (await (await ask("/scripted")).json()).running;
  return [...(await (await ask("/metrics")).text()).matchAll(RUNNING)].reduce((sum, found) => sum + Number(found.at(-1)), 0);
}

/** Waits until the engine has a request. Nothing of an answer that is not streamed can be seen in the gateway. */
export async function begun() {
  assert(await until(async () => (await busy()) > 0), "the engine has no request");
}

// What an engine of this kind can prove of a caller that has left; of a busy real one perhaps nothing.
const [SURELY, WELL, BADLY] = ["confirmed", "observed", "best_effort"];
const LEVELS = { kvit: [SURELY], sglang: [BADLY], ollama: [BADLY], vllm: [WELL], llamacpp: [WELL], "": [WELL, BADLY] };
// How long the engine may go on behind a gateway that does not pass a close on: to the answer's end.
const GOES_ON_MS = 280_000;

/**
 * The record of a run whose caller left: it is cancelled, and nothing runs on in the engine. A gateway of others shows nothing, so nothing is
 * said to be proven.
 */
export async function left(name, causes = LEFT) {
  const run = await settled(name);
  const shown = JSON.stringify(run);
  assert.equal(run.outcome.kind, "cancelled", shown);
  assert(causes.includes(run.outcome.cause), shown);
  assert((HOP ? [BADLY] : LEVELS[KIND]).includes(run.guarantee), shown);
  assert.equal(run.waste_bound_tokens > 0, run.guarantee === "best_effort", shown);
  assert(await until(async () => (await busy()) === 0, HOP ? GOES_ON_MS : undefined), "the engine still has a request");
  return run;
}

/** The release of an installed package. */
export const version = (name) => JSON.parse(readFileSync(new URL(`../node_modules/${name}/package.json`, import.meta.url))).version;

/** `does(what, name, check)` for a client: a test, and a cell of the table (a line in KVIT_TEST_CELLS). */
export const cells = (client, release) => (what, name, check, skip = false) => {
  const write = (came) => {
    const file = process.env.KVIT_TEST_CELLS;
    if (file) appendFileSync(file, `${[client, release, what, came].join("\t")}\n`);
  };
  if (skip) write("left out");
  test(name, { skip }, async () => {
    let passed = false;
    try {
      await check();
      const workers = async () => (await get("/v1/workers")).data.every((worker) => worker.runs === 0);
      assert(await until(workers), "a run is left in the gateway");
      passed = true;
    } finally {
      write(passed ? "passed" : "failed");
    }
  });
};
