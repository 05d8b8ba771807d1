// Cancels that nobody has acknowledged, the alerts, and the diagnosis. Where somebody may not see one of them, nothing is shown of it.

import { find, key } from "./api.js";
import { $, badge, h, redraw, show } from "./dom.js";
import { count, long } from "./format.js";

/** A run whose cancel was sent and not acknowledged, with the time since. */
export function unacknowledged(live, now) {
  return live
    .filter(({ milestones, state }) => state !== "ended" && milestones?.cancel_sent !== null && milestones?.cancel_acknowledged === null)
    .map((run) => ({ run, since: Math.max(0, now - run.created_ms - run.milestones.cancel_sent) }))
    .sort((a, b) => b.since - a.since);
}

export function drawCancels(waiting, choose) {
  const what = JSON.stringify(waiting.map(({ run, since }) => [run.id, run.tenant, Math.floor(since / 1000)]));
  $("cancels").classList.toggle("alarm", waiting.length > 0);
  redraw($("cancels-body"), what, () => {
    if (!waiting.length) return h("p", { class: "none good", text: "✓ None. Every cancel that was sent has been acknowledged." });
    const rows = waiting.map(({ run, since }) =>
      h("tr", {},
        h("td", {}, h("button", { type: "button", class: "link id", "data-focus": run.id, onclick: () => choose(run.id, run.tenant), text: run.id })),
        h("td", { text: run.outcome?.cause ?? run.phase_at_disconnect ?? "" }),
        h("td", { class: "n", text: long(since) }),
        h("td", { class: "n", text: count(run.blocks?.held) })));
    const head = h("tr", {}, ...["Run", "Left in", "Sent", "Blocks"].map((text, i) => h("th", { scope: "col", class: i > 1 ? "n" : null, text })));
    return h("table", {}, h("thead", {}, head), h("tbody", {}, ...rows));
  });
}

/** What an endpoint says that need not be there, or not for this key: asked again now and then only where it was not. */
class Optional {
  constructor(path, everyMs, absentMs) {
    Object.assign(this, { path, everyMs, absentMs, next: 0, answer: null });
  }

  async poll() {
    if (Date.now() < this.next && this.key === key.get()) return this.answer;
    this.key = key.get();
    this.next = Date.now() + this.everyMs;
    this.answer = await find(this.path);
    if (this.answer === null) this.next = Date.now() + this.absentMs;
    return this.answer;
  }
}

const WASTE = new Optional("/v1/waste", 5000, 60_000);
const ALERTS = new Optional("/v1/alerts", 5000, 60_000);
const DIAGNOSE = new Optional("/v1/diagnose", 10_000, 60_000);

const word = (value) => (typeof value === "string" ? value : null);

/** Each alert with what is common to all shapes of it: a name, whether it fires, and a sentence. */
function alertOf(alert) {
  const name = word(alert.name) ?? word(alert.alert) ?? word(alert.id) ?? "alert";
  const state = word(alert.state) ?? (alert.firing === true ? "firing" : "ok");
  const text = word(alert.summary) ?? word(alert.message) ?? word(alert.description) ?? word(alert.why) ?? "";
  const value = typeof alert.value === "number" && typeof alert.threshold === "number"
    ? `${digits(alert.value)} of ${digits(alert.threshold)} ${word(alert.unit) ?? ""}`
    : null;
  return { name, state, firing: state === "firing" || alert.firing === true, text, value };
}

const digits = (n) => String(Number(n.toPrecision(3)));

/** The waste of the last window and since the start, as the server itself counts them: null where it does not. */
export async function windows() {
  const answer = await WASTE.poll();
  const of = (period) => (typeof period?.ratio?.ratio === "number" ? period.ratio.ratio : null);
  return answer && { seconds: answer.window_s, window: of(answer.window), total: of(answer.total) };
}

export async function alerts() {
  const answer = await ALERTS.poll();
  show($("alerts"), answer !== null);
  if (answer === null) return null;
  const all = (answer.data ?? answer.alerts ?? []).map(alertOf);
  all.sort((a, b) => b.firing - a.firing || a.name.localeCompare(b.name));
  $("alerts").classList.toggle("alarm", all.some(({ firing }) => firing));
  // Of a rule that does not fire it is enough that it was looked at, and how far off it is.
  redraw($("alerts-body"), JSON.stringify(all), () => h("ul", { class: "list" }, ...all.map(({ name, state, firing, text, value }) =>
    h("li", {}, badge(state, firing ? "bad" : state === "ok" ? "ok" : state === "pending" ? "warn" : "unknown"), h("b", { text: name }),
      firing && text ? h("span", { text }) : null, value ? h("span", { class: "muted", text: value }) : null))));
  return { firing: all.filter(({ firing }) => firing) };
}

/** What is the matter, as the server judges it. It is for operators: to whoever has another key nothing is shown. */
export async function diagnose() {
  const answer = await DIAGNOSE.poll();
  show($("diagnose"), answer !== null);
  if (answer === null) return null;
  const { verdict, fault, summary, boundary, evidence, next } = answer;
  $("diagnose").classList.toggle("alarm", fault);
  redraw($("diagnose-body"), JSON.stringify([verdict, boundary, evidence, next]), () => [
    h("p", {}, badge(verdict.replaceAll("_", " "), fault ? "bad" : verdict === "cannot_tell" ? "unknown" : "ok"), h("span", { text: ` ${summary}` })),
    boundary ? h("p", { class: "muted", text: `not crossed: ${boundary}` }) : null,
    h("ul", {}, ...evidence.map((text) => h("li", { text }))),
    next.length ? h("div", {}, h("h3", { text: "What to do next" }), h("ol", {}, ...next.map((text) => h("li", { text })))) : null,
  ]);
  return answer;
}
