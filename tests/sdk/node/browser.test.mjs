// A browser: a page's fetch that aborts in a stream, in a long prefill and while the whole answer is awaited; a tab that is closed, a tab
// that goes elsewhere and a browser that is killed in mid-stream.
//
// The pages are kvit's own (/health/live), so that their requests need nobody's leave.
// contract: C-12 C-13 C-15
// field: F-01 F-03 F-13 F-18

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { chromium } from "playwright-core";
import { SERVER, STORY, ask, assertGone, essay, everythingComesBack, reached, released, runId } from "./server.mjs";

everythingComesBack();

// No network but the server's, and nothing that asks for one.
const ARGS = [
  "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update",
  "--disable-sync",
];
const STREAMING = ["prefill", "before_first_token", "decode"];

const executablePath = process.env.KVIT_TEST_CHROMIUM;
let server, browser;

// Each has a new, empty profile of its own, which Playwright removes.
async function start() {
  const server = await chromium.launchServer({ executablePath, headless: true, args: ARGS });
  return [server, await chromium.connect(server.wsEndpoint())];
}

before(async () => {
  assert(executablePath, "KVIT_TEST_CHROMIUM names no browser: `cargo xtask sdk browser` finds one");
  [server, browser] = await start();
});
after(() => server?.close());

async function open(browser) {
  const page = await browser.newPage();
  await page.goto(`${SERVER}/health/live`);
  return page;
}

// Begins in the page and comes back at once: what happens then is kept in `window.said`, and `window.controller` ends it.
const begin = (page, id, more) =>
  page.evaluate(
    ([id, body]) => {
      window.controller = new AbortController();
      window.said = { events: 0, end: null };
      const headers = { "Content-Type": "application/json", "X-Request-Id": id };
      const call = async () => {
        const answer = await fetch("/v1/chat/completions", { method: "POST", headers, body, signal: window.controller.signal });
        const reader = answer.body.getReader();
        while (!(await reader.read()).done) window.said.events++;
      };
      call().then(() => (window.said.end = "done"), (error) => (window.said.end = error.name));
    },
    [id, JSON.stringify(ask(more))],
  );

const abort = async (page) => {
  await page.evaluate(() => window.controller.abort());
  await page.waitForFunction(() => window.said.end);
  assert.equal(await page.evaluate(() => window.said.end), "AbortError");
};

const streams = async (page, id) => {
  await begin(page, id, { stream: true });
  await page.waitForFunction(() => window.said.events >= 10 || window.said.end, null, { timeout: 120_000 });
};

test("a page's AbortController in a stream", async () => {
  const [page, id] = [await open(browser), runId()];
  await streams(page, id);
  await abort(page);
  const run = await released(id);
  assertGone(run, { phases: STREAMING });
  assert.equal(run.delivery, "partial");
  await page.close();
});

for (const [state, messages] of [["decoding", () => STORY], ["prefilling", essay]]) {
  for (const stream of [true, false]) {
    test(`a page's AbortController while ${stream ? "a stream" : "the whole answer"} is awaited, ${state}`, async () => {
      const [page, id] = [await open(browser), runId()];
      await begin(page, id, { messages: messages(), stream });
      await reached(id, state);
      await abort(page);
      const run = await released(id);
      assertGone(run, { phases: STREAMING, causes: stream ? undefined : ["client_closed"] });
      assert(run.delivery === "none" || stream, JSON.stringify(run));
      await page.close();
    });
  }
}

test("a tab that is closed in mid-stream leaves the other tab's run alone", async () => {
  const [closing, staying, id, other] = [await open(browser), await open(browser), runId(), runId()];
  await streams(closing, id);
  await begin(staying, other, { stream: true, max_tokens: 40 });
  await closing.close();
  const run = await released(id);
  assertGone(run, { phases: STREAMING });
  assert.equal(run.delivery, "partial");
  await staying.waitForFunction(() => window.said.end, null, { timeout: 120_000 });
  assert.equal(await staying.evaluate(() => window.said.end), "done");
  const neighbour = await released(other);
  assert.equal(`${neighbour.outcome.kind} ${neighbour.delivery} ${neighbour.tokens.delivered}`, "completed complete 40");
  await staying.close();
});

test("a tab that goes elsewhere in mid-stream", async () => {
  const [page, id] = [await open(browser), runId()];
  await streams(page, id);
  await page.goto("about:blank");
  assertGone(await released(id), { phases: STREAMING });
  await page.close();
});

test("a browser that is killed in mid-stream", async () => {
  const [server, browser] = await start();
  const id = runId();
  await streams(await open(browser), id);
  await server.kill();
  const run = await released(id);
  assertGone(run, { phases: STREAMING });
  assert.equal(run.delivery, "partial");
});
