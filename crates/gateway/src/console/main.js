// The page: looks at the server about once a second while somebody can see it, hands what it says to the panels, and keeps the address.

import { Refused, find, get, key, metrics } from "./api.js";
import { $, badge, h, redraw, say, show } from "./dom.js";
import { drawBoundaries, drawWaste, ratio } from "./charts.js";
import { Detail } from "./detail.js";
import { judge } from "./health.js";
import { KvPanel } from "./kv.js";
import { alerts, diagnose, drawCancels, unacknowledged, windows } from "./panels.js";
import { Runs } from "./runs.js";

const EVERY_MS = 1000;
/** Every so many looks: what changes more slowly, or costs more to say. */
const SLOWLY = 3;
const SAID_MS = 8000;
const THEMES = ["system", "light", "dark"];

const known = {};
let who = null;
let looks = 0;
let paused = false;
let timer = null;

const kv = new KvPanel((owner) => {
  // To an operator the owner is TENANT:RUN where the run is another tenant's; both may have colons in them.
  const run = runs.all().find(({ id, tenant }) => owner === id || owner === `${tenant}:${id}`);
  choose(run?.id ?? owner, run?.tenant);
});
const detail = new Detail(() => choose(null), tell);
const runs = new Runs(choose, failed);
detail.now = () => runs.now();

function tell(text) {
  say($("said"), text);
  $("said").classList.add("shown");
  setTimeout(() => $("said").textContent === text && $("said").classList.remove("shown"), SAID_MS);
}

// --- the chosen run, which stands in the address -----------------------------------------------------------------------------------------

function choose(id, tenant = "") {
  const words = new URLSearchParams(id === null ? {} : { run: id, ...(tenant && tenant !== who?.tenant ? { tenant } : {}) });
  const hash = words.toString();
  if (location.hash.slice(1) === hash) return arrive();
  if (hash) location.hash = hash;
  else history.pushState(null, "", location.pathname);
  if (!hash) arrive();
}

function arrive() {
  const words = new URLSearchParams(location.hash.slice(1));
  const [id, tenant] = [words.get("run"), words.get("tenant") ?? who?.tenant];
  runs.mark(id, tenant);
  kv.light(id === null ? null : tenant && who && tenant !== who.tenant ? `${tenant}:${id}` : id);
  if (id !== detail.id || (words.get("tenant") ?? "") !== detail.tenant) guard(detail.choose(id, words.get("tenant") ?? ""));
}

addEventListener("hashchange", arrive);
addEventListener("popstate", arrive);

// --- looking ---------------------------------------------------------------------------------------------------------------------------------

/** What a look threw: a missing key asks for one, and everything else is what the verdict says. */
function failed(error) {
  if (error instanceof Refused && error.status === 401) return askKey(error.message);
  if (error instanceof Refused) return tell(error.message);
  known.unreachable = error.name === "TimeoutError" ? "It does not answer." : "No answer came from where this page was loaded.";
}

const guard = (promise) => promise.catch(failed);

async function whoIs() {
  who = await get("/v1/caller");
  detail.own = who.tenant;
  show($("key"), who.keys);
  say($("where"), [location.host, who.keys && who.name ? `${who.name}, tenant ${who.tenant}` : null].filter(Boolean).join(" · "));
  if (who.name === null) return false;
  runs.tenants(who);
  return true;
}

async function ready() {
  try {
    await get("/health/ready");
    return { error: null };
  } catch (error) {
    if (error instanceof Refused) return { error: error.message };
    throw error;
  }
}

async function look() {
  if (!who?.name && !(await whoIs())) return askKey(key.get() ? "This key is not known here." : "This server asks for a key.");
  const slowly = looks++ % SLOWLY === 0;
  const [account] = await Promise.all([
    engines() ? null : find("/v1/kv").catch((error) => (error instanceof Refused && error.status === 503 ? null : Promise.reject(error))),
    runs.poll(slowly),
    kv.poll(),
    detail.poll(),
    slowly ? slow() : null,
  ]);
  [known.kv, known.engines] = [account, engines()];
  if (kv.now) runs.skew = kv.now - Date.now();
  delete known.unreachable;
}

/** Whether all workers are engines of others, which keep no account that they could answer with. */
const engines = () => known.workers?.length > 0 && known.workers.every(({ slots }) => typeof slots === "number");

async function slow() {
  const asked = [ready(), get("/v1/workers"), metrics(), alerts(), windows(), diagnose()];
  const [is, workers, all, firing, shares, diagnosis] = await Promise.all(asked);
  Object.assign(known, { ready: is, workers: workers.data, metrics: all, alerts: firing, windows: shares, diagnosis });
}

function draw() {
  const waiting = unacknowledged(runs.live, runs.now());
  known.unacknowledged = waiting;
  known.live = runs.live.length;
  known.waste = ratio(runs.ended);
  drawCancels(waiting, choose);
  drawWaste(runs.ended, known.windows, $("waste-body").clientWidth);
  drawBoundaries(runs.ended, $("boundaries-body").clientWidth);
  verdict();
}

function verdict() {
  const { level, headline, because, checks } = judge(known);
  $("health").dataset.level = level;
  document.title = `${level === "ok" ? "" : "● "}${headline} · kvit`;
  say($("verdict"), headline);
  say($("because"), because);
  redraw($("checks"), JSON.stringify(checks), () => checks.map(({ label, level, value, why }) => h("li", { class: level, title: why }, h("span", { class: "muted", text: label }), badge(value, level))));
}

async function tick() {
  clearTimeout(timer);
  if (paused || document.hidden || $("ask-key").open) return;
  await guard(look());
  draw();
  clearTimeout(timer);
  timer = setTimeout(tick, EVERY_MS);
}

document.addEventListener("visibilitychange", tick);

// --- the bar ---------------------------------------------------------------------------------------------------------------------------------

$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  say($("pause"), paused ? "Paused" : "Pause");
  tick();
});

function theme(name) {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  sessionStorage.setItem("kvit.theme", name);
  say($("theme"), `Theme: ${name}`);
  kv.map.repaint();
}

$("theme").addEventListener("click", () => theme(THEMES[(THEMES.indexOf(sessionStorage.getItem("kvit.theme") ?? "system") + 1) % THEMES.length]));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => kv.map.repaint());
theme(THEMES.includes(sessionStorage.getItem("kvit.theme")) ? sessionStorage.getItem("kvit.theme") : "system");

function askKey(why) {
  const dialog = $("ask-key");
  if (dialog.open) return;
  say($("ask-key-why"), why);
  $("key-text").value = "";
  dialog.returnValue = "";
  dialog.onclose = () => {
    if (dialog.returnValue === "use") key.set($("key-text").value.trim());
    if (dialog.returnValue === "forget") key.set(null);
    $("key-text").value = "";
    if (dialog.returnValue) who = null;
    // Whoever closes it without a word is asked again when they want to be: by the button.
    if (dialog.returnValue === "use" || key.get()) tick();
    else nobody();
  };
  dialog.showModal();
  $("key-text").focus();
}

function nobody() {
  $("health").dataset.level = "unknown";
  say($("verdict"), "No key, no answer");
  say($("because"), "This server shows its runs and blocks to its keys only.");
}

$("key").addEventListener("click", () => askKey(key.get() ? "Another key for this tab, or none." : "This server asks for a key."));

tick().then(arrive);
