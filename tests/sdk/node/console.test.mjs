// The console, in a browser, against the server: what it draws is what the API says, and what it does is what it was told.
//
// contract: C-15 C-24 C-30

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after, before, test } from "node:test";
import { chromium } from "playwright-core";
import { CHAT, SERVER, STORY, ask, get, look, reached, released, runId, until } from "./server.mjs";

const ARGS = [
  "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update",
  "--disable-sync",
];
const WIDE = { width: 1280, height: 900 };
const NARROW = { width: 390, height: 844 };
const PATIENCE = { timeout: 60_000 };
// Where a server has no alerts, and where a key is no operator's and may see no diagnosis, the console finds that out by asking.
const MAY_BE_ABSENT = ["/v1/alerts", "/v1/diagnose", "/v1/waste"];

const executablePath = process.env.KVIT_TEST_CHROMIUM;
let browser;

before(async () => {
  assert(executablePath, "KVIT_TEST_CHROMIUM names no browser: `cargo xtask sdk browser` finds one");
  browser = await chromium.launch({ executablePath, headless: true, args: ARGS });
});
after(() => browser?.close());

/** The console in a fresh profile. What goes wrong in it, and whom it asks, is kept beside it. */
async function open(t, { server = SERVER, viewport = WIDE, colorScheme = "light", hash = "", prepare } = {}) {
  const context = await browser.newContext({ viewport, colorScheme });
  const page = await context.newPage();
  const seen = { problems: [], hosts: new Set() };
  page.setDefaultTimeout(PATIENCE.timeout);
  page.on("pageerror", (error) => seen.problems.push(error.stack));
  page.on("console", (message) => {
    const absent = MAY_BE_ABSENT.some((path) => message.location().url.endsWith(path));
    if (["error", "warning"].includes(message.type()) && !absent) seen.problems.push(`${message.text()} ${message.location().url}`);
  });
  page.on("request", (request) => seen.hosts.add(new URL(request.url()).origin));
  await prepare?.(page);
  await page.goto(`${server}/console${hash}`);
  t.after(async () => {
    await context.close();
    assert.deepEqual(seen.problems, [], "nothing went wrong in the page");
    assert.deepEqual([...seen.hosts], [server], "nobody else was asked");
  });
  return page;
}

/** A stream that is read until it is left, or ended; at the test's end in any case. */
function stream(t, id, more = {}) {
  const controller = new AbortController();
  t.after(() => controller.abort());
  const headers = { "Content-Type": "application/json", "X-Request-Id": id };
  const body = JSON.stringify(ask({ stream: true, ...more }));
  const over = (async () => {
    const answer = await fetch(CHAT, { method: "POST", headers, body, signal: controller.signal });
    for await (const piece of answer.body) void piece;
  })().catch(() => {});
  return { leave: () => controller.abort(), over };
}

const row = (page, id) => page.locator("#runs-table tbody tr", { has: page.getByRole("button", { name: id, exact: true }) });
const text = (page, selector) => page.locator(selector).innerText();
const ticks = (page) => page.locator("#run-body .tick[data-milestone]").evaluateAll((all) => all.map((tick) => tick.dataset.milestone).sort());
const lit = async (page) => Number((await text(page, "#legend")).match(/of the chosen run\s+([\d,]+)/)?.[1].replaceAll(",", "") ?? -1);

/** What the page says until it says what is wanted. */
async function shows(what, read, wanted) {
  let last;
  await until(async () => {
    last = await read();
    return wanted(last);
  }, PATIENCE.timeout);
  assert(wanted(last), `${what}: ${JSON.stringify(last)}`);
  return last;
}

test("a run appears while it lives, its blocks are lit, and it is cancelled only when that is confirmed", async (t) => {
  const page = await open(t);
  const id = runId();
  const caller = stream(t, id);
  await reached(id, "decoding");
  await row(page, id).waitFor();
  await shows("the run's state", () => row(page, id).locator(".badge").innerText(), (word) => word === "decoding");
  await row(page, id).click();
  assert.equal(new URL(page.url()).hash, `#run=${id}`, "the address names the run");
  await shows("its cells", () => lit(page), (n) => n > 0);
  await shows("its ticks", () => ticks(page), (names) => names.includes("first_token"));

  await page.getByRole("button", { name: "Cancel run…" }).click();
  await page.getByRole("button", { name: "Let it run" }).click();
  assert.equal((await look(id)).outcome, null, "whoever thinks again has cancelled nothing");
  await page.getByRole("button", { name: "Cancel run…" }).click();
  await page.getByRole("button", { name: "Cancel the run" }).click();
  const run = await released(id);
  await caller.over;
  assert.equal(run.outcome.cause, "cancel_requested");
  await page.locator("#run-body .standing", { hasText: "cancelled: cancel_requested" }).waitFor();
  await shows("its cells", () => lit(page), (n) => n === 0);
  assert.equal(await page.locator("#cancel").isVisible(), false, "what has ended cannot be cancelled");
  await shows("what became of it", () => text(page, "#said"), (said) => said.includes(`${id}: cancelled (cancel_requested)`));
});

test("a run that its caller left is drawn as its record says, over time and over steps", async (t) => {
  const id = runId();
  const caller = stream(t, id);
  await reached(id, "decoding");
  caller.leave();
  const run = await released(id);
  const page = await open(t, { hash: `#run=${id}` });
  const milestones = Object.entries(run.milestones).filter(([, at]) => at !== null).map(([name]) => name).sort();
  assert(milestones.includes("disconnect_observed") && milestones.includes("released"), JSON.stringify(run));
  await shows("its ticks", () => ticks(page), (names) => JSON.stringify(names) === JSON.stringify(milestones));
  // Left to right is the order of time.
  const xs = await page.locator("#run-body .tick[data-milestone]").evaluateAll((all) => all.map((tick) => [tick.dataset.milestone, Number(tick.querySelector("circle").getAttribute("cx"))]));
  const inTime = [...xs].sort((a, b) => run.milestones[a[0]] - run.milestones[b[0]] || a[1] - b[1]);
  assert(inTime.every(([, x], i) => i === 0 || x >= inTime[i - 1][1] - 0.01), JSON.stringify(inTime));
  const lanes = new Set(await page.locator("#run-body .tick").evaluateAll((all) => all.map((tick) => tick.dataset.lane)));
  assert.deepEqual([...lanes].sort(), ["client", "engine", "gateway", "worker"]);
  await page.getByRole("button", { name: "Steps" }).click();
  const steps = await get(`/v1/runs/${id}/steps`);
  assert(steps.complete && steps.rows.length >= run.steps.total, JSON.stringify(steps));
  await shows("its steps", () => page.locator("#run-body rect.step").count(), (n) => n === steps.rows.length);
  assert.deepEqual(await ticks(page), milestones);
  const vain = steps.rows.filter(([ms, , , , , discarded, , layers]) => ms > run.boundaries[0].observed || discarded > 0 || layers > 0).length;
  assert.equal(await page.locator("#run-body rect.step.vain").count(), vain, "what was computed in vain is marked");
  const { generated, delivered } = run.tokens;
  const facts = await text(page, "#run-body .facts");
  for (const n of [generated, delivered]) assert(facts.includes(n.toLocaleString("en")), facts);
  // And as a list, for whoever cannot see it.
  await page.getByText("Milestones as a list").click();
  assert.equal(await page.locator("#run-body details tbody tr").count(), milestones.length);
});

test("the map's cells are the account's blocks", async (t) => {
  const caller = stream(t, runId(), { max_tokens: 40 });
  await caller.over;
  const page = await open(t);
  const kv = await shows("rest", () => get("/v1/kv/blocks"), ({ active, draining }) => active + draining === 0);
  const step = () => text(page, "#moment").then((said) => Number(said.match(/step ([\d,]+)/)?.[1].replaceAll(",", "")));
  await shows("the newest moment", step, (at) => at === kv.step);
  const drawn = () =>
    page.evaluate((total) => {
      const canvas = document.querySelector("#cells");
      const style = getComputedStyle(document.querySelector("#map"));
      const ink = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
      const colour = (value) => {
        ink.fillStyle = value;
        ink.fillRect(0, 0, 1, 1);
        return [...ink.getImageData(0, 0, 1, 1).data].join();
      };
      const states = Object.fromEntries(["free", "active", "cached", "draining", "quarantined"].map((state) => [colour(style.getPropertyValue(`--kv-${state}`)), state]));
      // A copy: whoever reads the canvas itself again and again is warned of that.
      const copy = Object.assign(document.createElement("canvas"), { width: canvas.width, height: canvas.height }).getContext("2d", { willReadFrequently: true });
      copy.drawImage(canvas, 0, 0);
      const { data, width } = copy.getImageData(0, 0, canvas.width, canvas.height);
      const cell = Number(canvas.dataset.cell);
      const columns = canvas.width / cell;
      return Array.from({ length: total }, (_, block) => {
        const at = 4 * (Math.floor(block / columns) * cell * width + width * 1 + (block % columns) * cell + 1);
        return states[[...data.slice(at, at + 4)].join()] ?? "?";
      });
    }, kv.total);
  const wanted = kv.blocks.map(({ state }) => state);
  await shows("each cell", drawn, (states) => JSON.stringify(states) === JSON.stringify(wanted));
  const legend = await text(page, "#legend");
  for (const state of ["active", "cached", "draining", "quarantined", "free"]) assert.match(legend, new RegExp(`${state}\\s+${kv[state].toLocaleString("en")}\\s`));

  // By the keyboard: to the first cached block, whose generation and fence are the account's.
  await page.locator("#map").focus();
  if (kv.blocks[0].state === "free") await page.keyboard.press("n");
  await shows("the block under the cursor", () => text(page, "#block"), (said) => /generation [\d,]+/.test(said));
  const said = await text(page, "#block");
  const block = kv.blocks[Number(said.match(/block ([\d,]+)/)[1].replaceAll(",", ""))];
  assert(said.includes(block.state) && said.includes(`generation ${block.generation.toLocaleString("en")}`), `${said} ${JSON.stringify(block)}`);
  await page.keyboard.press("ArrowRight");
  await shows("the next block", () => text(page, "#block"), (now) => now.includes(`block ${(block.block + 1).toLocaleString("en")}`));
});

test("the scrubber goes back to how the blocks stood", async (t) => {
  const page = await open(t);
  const id = runId();
  const caller = stream(t, id);
  await reached(id, "decoding");
  const held = await shows("a moment with the run's blocks", async () => {
    const { workers } = await get("/v1/kv/moments");
    return workers[0].moments.findLast(({ active }) => active > 0)?.moment ?? null;
  }, (moment) => moment !== null);
  caller.leave();
  await released(id);
  const shown = () => page.locator("#cells").getAttribute("data-moment").then(Number);
  await shows("a later moment", shown, (moment) => moment > held);
  await page.locator("#scrubber").focus();
  for (let i = 0; (await shown()) > held; i++) {
    assert(i < 600, "it comes there");
    const before = await shown();
    await page.keyboard.press("ArrowLeft");
    await shows("an earlier moment", shown, (moment) => moment < before);
  }
  assert.match(await text(page, "#moment"), /ago/);
  assert.equal(await page.locator("#live").getAttribute("aria-pressed"), "false");
  const map = await get(`/v1/kv/map?moment=${await shown()}`);
  assert.match(await text(page, "#legend"), new RegExp(`active\\s+${map.active.toLocaleString("en")}\\s`));
  await page.keyboard.press("End");
  await shows("the newest moment", () => page.locator("#live").getAttribute("aria-pressed"), (pressed) => pressed === "true");
});

test("filters by state, cause and id", async (t) => {
  const ids = [runId(), runId()];
  const [left, done] = [stream(t, ids[0]), stream(t, ids[1], { max_tokens: 3, ignore_eos: true })];
  await reached(ids[0], "decoding");
  left.leave();
  await done.over;
  for (const id of ids) await released(id);
  const page = await open(t);
  for (const id of ids) await row(page, id).waitFor();
  await page.getByRole("combobox", { name: "Cause", exact: true }).selectOption("length");
  await row(page, ids[0]).waitFor({ state: "detached" });
  await row(page, ids[1]).waitFor();
  await page.getByRole("combobox", { name: "Cause", exact: true }).selectOption("");
  await row(page, ids[0]).waitFor();
  await page.getByRole("searchbox", { name: "Id", exact: true }).fill(ids[0].slice(-12));
  await row(page, ids[1]).waitFor({ state: "detached" });
  assert.equal(await page.locator("#runs-table tbody tr").count(), 1);
  await page.getByRole("searchbox", { name: "Id", exact: true }).fill("");
  await page.getByRole("combobox", { name: "State", exact: true }).selectOption("live");
  await page.getByText("No run is like that.").waitFor();
});

test("everything is reached by the keyboard, in the order of the page", async (t) => {
  const id = runId();
  await stream(t, id, { max_tokens: 3 }).over;
  const page = await open(t);
  await row(page, id).waitFor();
  const order = [];
  for (let i = 0; i < 14; i++) {
    await page.keyboard.press("Tab");
    order.push(await page.evaluate(() => document.activeElement.id || document.activeElement.className || document.activeElement.tagName));
    if (order.at(-1) === "link id") break;
  }
  assert.deepEqual(order, ["skip", "pause", "theme", "map", "scrubber", "live", "f-state", "f-cause", "f-id", "runs-scroll", "link id"]);
  await page.keyboard.press("Enter");
  await shows("the chosen run", () => text(page, "#run-title"), (title) => title.startsWith("Run "));
  // The dialog keeps the focus, gives it back, and Escape means no.
  const other = runId();
  const caller = stream(t, other);
  await reached(other, "decoding");
  await row(page, other).getByRole("button").focus();
  await page.keyboard.press("Enter");
  await page.locator("#cancel").waitFor();
  await page.locator("#cancel").focus();
  await page.keyboard.press("Enter");
  assert.equal(await page.evaluate(() => document.activeElement.innerText), "Let it run", "what harms nobody has the focus");
  await page.keyboard.press("Escape");
  await shows("the focus", () => page.evaluate(() => document.activeElement.id), (focused) => focused === "cancel");
  assert.equal((await look(other)).outcome, null);
  caller.leave();
  await released(other);
});

for (const colorScheme of ["light", "dark"]) {
  for (const viewport of [WIDE, NARROW]) {
    test(`${colorScheme}, ${viewport.width} pixels wide: nothing is cut off, and words can be read`, async (t) => {
      const id = runId();
      const caller = stream(t, id);
      await reached(id, "decoding");
      caller.leave();
      await released(id);
      const page = await open(t, { viewport, colorScheme, hash: `#run=${id}` });
      await page.locator("#run-body .lanes").waitFor();
      await shows("the verdict", () => page.locator("#health").getAttribute("data-level"), (level) => level !== "unknown");
      const { wide, inside } = await page.evaluate(() => ({ wide: document.documentElement.scrollWidth, inside: innerWidth }));
      assert(wide <= inside, `the page is ${wide} pixels wide in ${inside}`);
      const poor = await page.evaluate(contrasts);
      assert.deepEqual(poor, [], "words below 4.5 to 1");
      assert(!(await page.locator("body").innerText()).includes(STORY[0].content), "no prompt is shown");
      // The pictures in docs/console.md: the wide one dark, the narrow one light.
      if (process.env.KVIT_TEST_SHOTS && (viewport === WIDE) === (colorScheme === "dark")) {
        await page.screenshot({ path: join(process.env.KVIT_TEST_SHOTS, `console-${viewport.width}.png`) });
      }
    });
  }
}

/** In the page: words whose colour is too near to what is behind them. */
function contrasts() {
  const ink = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d", { willReadFrequently: true });
  const rgba = (value) => {
    ink.clearRect(0, 0, 1, 1);
    ink.fillStyle = value;
    ink.fillRect(0, 0, 1, 1);
    return [...ink.getImageData(0, 0, 1, 1).data];
  };
  const over = ([r, g, b, a], [x, y, z]) => [r, g, b].map((part, i) => (part * a + [x, y, z][i] * (255 - a)) / 255);
  const ground = (element) => {
    const behind = element.parentElement ? ground(element.parentElement) : [255, 255, 255];
    return over(rgba(getComputedStyle(element).backgroundColor), behind);
  };
  const light = (rgb) => rgb.map((part) => part / 255).map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)).reduce((sum, part, i) => sum + part * [0.2126, 0.7152, 0.0722][i], 0);
  const poor = new Set();
  for (const element of document.body.querySelectorAll("*")) {
    const words = [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
    if (!words || !element.checkVisibility() || element.closest("dialog, option, noscript, .said")) continue;
    const style = getComputedStyle(element);
    const behind = ground(element);
    const colour = over(rgba(element.closest("svg") ? style.fill : style.color), behind);
    const [bright, dark] = [light(colour), light(behind)].sort((a, b) => b - a);
    if ((bright + 0.05) / (dark + 0.05) < 4.5) poor.add(`${element.tagName} ${element.className.baseVal ?? element.className} ${element.textContent.slice(0, 30)}`);
  }
  return [...poor];
}

test("a pool of 100,000 blocks is drawn a few cells at a time, and again only where it changed", async (t) => {
  const TOTAL = 100_000;
  const state = { moment: 1, changed: 0 };
  const sums = (active) => ({ total: TOTAL, active, orphaned: 0, cached: 0, draining: 0, quarantined: 0, free: TOTAL - active, conserved: true });
  const active = () => 40_000 + state.changed;
  const json = (route, body) => route.fulfill({ json: body });
  const page = await open(t, {
    prepare: async (page) => {
      await page.route("**/v1/kv/moments*", (route) => {
        const after = Number(new URL(route.request().url()).searchParams.get("after") ?? 0);
        const moments = [{ moment: state.moment, at_ms: Date.now(), step: state.moment, ...sums(active()) }].filter(({ moment }) => moment > after);
        return json(route, { object: "kv_moments", now_ms: Date.now(), every_ms: 1000, keep_ms: 300_000, workers: [{ worker: "big", incarnation: "x", first: 1, moments }] });
      });
      await page.route("**/v1/kv/map*", (route) => {
        const kinds = [{ state: "active", owners: ["r/1"], fence: 7 }, { state: "free", owners: [], fence: null }];
        return json(route, { object: "kv_map", worker: "big", moment: state.moment, step: state.moment, block_tokens: 16, ...sums(active()), kinds, cells: [active(), 0, TOTAL - active(), 1] });
      });
    },
  });
  const counts = () => page.evaluate(() => Object.fromEntries(Object.entries(document.querySelector("#cells").dataset).map(([name, value]) => [name, Number(value)])));
  const whole = await shows("the whole map", counts, ({ drawn }) => drawn >= TOTAL);
  assert.equal(whole.drawn, TOTAL, "each cell once");
  assert(whole.most <= 20_000, `at most 20,000 cells a frame: ${whole.most}`);
  Object.assign(state, { moment: 2, changed: 300 });
  await shows("the next moment", counts, ({ moment }) => moment === 2);
  const next = await shows("the changed cells", counts, ({ drawn }) => drawn > TOTAL);
  assert.equal(next.drawn, TOTAL + 300, "only what changed");
  const seen = await page.evaluate(() => [document.documentElement.scrollWidth <= innerWidth, document.querySelector("#cells").clientHeight]);
  assert(seen[0] && seen[1] <= 340, `it fits: ${seen}`);
});

test("a server with keys is asked with the key that somebody types, which is kept in the tab", async (t) => {
  const { KVIT_TEST_BINARY: binary, KVIT_TEST_MODEL: model } = process.env;
  assert(binary && model, "KVIT_TEST_BINARY and KVIT_TEST_MODEL are needed: `cargo xtask sdk browser` names them");
  const dir = await mkdtemp(join(tmpdir(), "kvit-console-"));
  const key = (name, tenant, secret) => `[[key]]\nname = "${name}"\ntenant = "${tenant}"\nsecret = "${secret}"\n`;
  const SECRETS = { alice: "the-secret-of-alice-1", bob: "the-secret-of-bob-12", op: "the-secret-of-the-op" };
  const config = `log = "warn"\nport = 0\nkv_blocks = 64\nstore = "none"\n${key("alice", "one", SECRETS.alice)}${key("bob", "two", SECRETS.bob)}${key("op", "ops", SECRETS.op)}operator = true\n`;
  await writeFile(join(dir, "kvit.toml"), config);
  const child = spawn(binary, ["serve", "--config", join(dir, "kvit.toml"), "--model", model], { stdio: ["ignore", "pipe", "inherit"] });
  t.after(async () => {
    const ended = new Promise((resolve) => child.once("exit", resolve));
    child.kill("SIGTERM");
    await ended;
    await rm(dir, { recursive: true });
  });
  let server;
  for await (const line of createInterface(child.stdout)) {
    server = line.match(/listening on (\S+)/)?.[1];
    if (server) break;
  }
  for (const [who, id] of [["alice", "run-of-one"], ["bob", "run-of-two"]]) {
    const headers = { "Content-Type": "application/json", "X-Request-Id": id, Authorization: `Bearer ${SECRETS[who]}` };
    const answer = await fetch(`${server}/v1/chat/completions`, { method: "POST", headers, body: JSON.stringify(ask({ max_tokens: 2 })) });
    assert.equal(answer.status, 200);
    await answer.text();
  }
  const page = await open(t, { server });
  const use = async (secret) => {
    if (!(await page.locator("#ask-key").isVisible())) await page.getByRole("button", { name: "Key", exact: true }).click();
    await page.locator("#key-text").fill(secret);
    await page.keyboard.press("Enter");
  };
  await page.locator("#ask-key").waitFor();
  assert.equal(await page.locator("#runs-table tbody tr").count(), 0);
  await use("no-secret-of-anybody");
  await page.locator("#ask-key").waitFor();
  await use(SECRETS.alice);
  await row(page, "run-of-one").waitFor();
  assert.equal(await row(page, "run-of-two").count(), 0, "another tenant's run is not there");
  assert.match(await text(page, "#where"), /alice, tenant one/);
  assert.equal(await page.locator("#diagnose").isVisible(), false, "a diagnosis names runs of every tenant");
  const kept = await page.evaluate(() => [localStorage.length, document.cookie, Object.values(sessionStorage), document.documentElement.outerHTML]);
  assert.deepEqual([kept[0], kept[1]], [0, ""]);
  assert(kept[2].includes(SECRETS.alice) && !kept[3].includes(SECRETS.alice) && !page.url().includes(SECRETS.alice));
  await page.reload();
  await row(page, "run-of-one").waitFor();
  // An operator sees all tenants' runs, by tenant if it likes, and cancels none of theirs.
  await use(SECRETS.op);
  await row(page, "run-of-two").waitFor();
  await row(page, "run-of-one").waitFor();
  await page.locator("#diagnose .badge", { hasText: "healthy" }).waitFor();
  const { verdict, evidence } = await (await fetch(`${server}/v1/diagnose`, { headers: { Authorization: `Bearer ${SECRETS.op}` } })).json();
  assert.equal(verdict, "healthy");
  const drawn = await text(page, "#diagnose-body");
  for (const line of evidence) assert(drawn.includes(line), `${drawn}: ${line}`);
  await page.getByRole("combobox", { name: "Tenant", exact: true }).selectOption("two");
  await row(page, "run-of-one").waitFor({ state: "detached" });
  await row(page, "run-of-two").click();
  await page.locator("#run-body .lanes").waitFor();
});
