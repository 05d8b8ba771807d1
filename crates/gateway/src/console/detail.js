// The chosen run: its standing, its timeline, what it cost, how its end crossed each boundary, and the button that cancels it.

import { find, post, run as runPath } from "./api.js";
import { $, badge, h, redraw, say, show } from "./dom.js";
import { count, plural, span } from "./format.js";
import { abandoned, leaving, stamps, timeline } from "./timeline.js";
import { MILESTONES } from "./words.js";

/** How long the server may take to say what became of a cancel. */
const CANCEL_WAIT_MS = 2000;

export class Detail {
  constructor(shown, told) {
    Object.assign(this, { shown, told, id: null, scale: "time" });
    for (const button of $("scale").querySelectorAll("button")) {
      button.addEventListener("click", () => {
        this.scale = button.dataset.scale;
        this.draw();
      });
    }
    $("cancel").addEventListener("click", () => this.ask());
    $("leave-run").addEventListener("click", () => this.shown(null));
    new ResizeObserver(() => this.run && this.draw()).observe($("run-body"));
  }

  async choose(id, tenant) {
    Object.assign(this, { id, tenant: tenant ?? "", run: null, steps: null, problem: null });
    this.draw();
    if (id !== null) await this.poll();
  }

  /** Looks again at a run that is not over, and at one that was never seen. */
  async poll() {
    const { id, tenant } = this;
    if (id === null || (this.run?.settled && this.steps !== null)) return;
    const [run, steps] = await Promise.all([find(runPath(id, tenant)), find(runPath(id, tenant, "/steps"))]);
    if (this.id !== id) return;
    this.problem = run ? null : "No such run is known here, or no longer.";
    this.run = run ?? this.run;
    // Of a run that is settled nothing more is to be expected, whatever the journal has of it.
    this.steps = table(steps) ?? (run?.settled ? { rows: [], complete: false } : null);
    this.draw();
  }

  draw() {
    const { run, id } = this;
    show($("leave-run"), id !== null);
    show($("cancel"), Boolean(run && run.state !== "ended" && this.mayCancel(run)));
    show($("scale"), Boolean(run?.milestones));
    say($("run-title"), id === null ? "Timeline" : `Run ${id}`);
    document.body.classList.toggle("has-run", id !== null);
    if (!run) return this.nothing();
    const hasSteps = (this.steps?.rows.length ?? 0) > 0;
    for (const button of $("scale").querySelectorAll("button")) {
      const is = button.dataset.scale === this.scale;
      button.setAttribute("aria-pressed", String(is && (hasSteps || this.scale === "time")));
      if (button.dataset.scale === "steps") {
        button.disabled = !hasSteps;
        button.title = hasSteps ? "" : "The journal has no steps of this run, or no longer.";
      }
    }
    const width = Math.max(300, $("run-body").clientWidth);
    const what = JSON.stringify([run, this.steps?.rows.length, this.scale, width, run.state === "ended" ? 0 : this.age()]);
    redraw($("run-body"), what, () => this.body(run, width));
  }

  nothing() {
    const text = this.id === null
      ? "Choose a run to see who left when, when compute stopped, and when its blocks came back."
      : this.problem ?? "Looking…";
    redraw($("run-body"), text, () => h("p", { class: "none", text }));
  }

  age() {
    return Math.round(this.now() - this.run.created_ms);
  }

  /** A run of another tenant is an operator's to see and not to cancel (C-30). */
  mayCancel(run) {
    return !run.tenant || run.tenant === this.own;
  }

  body(run, width) {
    const parts = [standing(run)];
    if (stampsOf(run)) {
      const steps = this.scale === "steps" && this.steps?.rows.length ? this.steps : this.steps ?? null;
      parts.push(h("div", { class: "lanes-box" }, timeline(run, steps, this.scale, width, this.age())), key());
      parts.push(h("div", { class: "facts" }, costs(run), crossings(run)), this.order(run));
    } else {
      parts.push(h("p", { class: "none", text: "Its gateway is another one, or it ran in an earlier life: only its outcome is kept." }));
    }
    return parts;
  }

  /** The milestones as a list: what the drawing shows, for whoever reads it line by line. It stays open while the run goes on. */
  order(run) {
    const ontoggle = ({ target }) => (this.isListed = target.open);
    return h("details", { open: Boolean(this.isListed), ontoggle }, h("summary", { "data-focus": "order", text: "Milestones as a list" }), listed(run));
  }

  ask() {
    const { run } = this;
    if (!run) return;
    const dialog = $("ask-cancel");
    const made = run.tokens ? `, ${plural(run.tokens.generated, "token")} made` : "";
    say($("ask-cancel-what"), `${run.id} is ${run.state}${made}.`);
    dialog.returnValue = "no";
    dialog.onclose = () => dialog.returnValue === "yes" && this.cancel(run);
    dialog.showModal();
  }

  async cancel({ id }) {
    try {
      const after = await post(`/v1/runs/${encodeURIComponent(id)}/cancel?wait_ms=${CANCEL_WAIT_MS}`);
      const { disconnect_observed: seen, released } = after.milestones ?? {};
      const took = seen !== null && released !== null && released >= seen ? `, released after ${span(released - seen)}` : "";
      this.told(after.outcome ? `${id}: ${after.outcome.kind} (${after.outcome.cause})${took}` : `${id}: the cancel was sent, and is not acknowledged yet`);
    } catch (error) {
      this.told(`${id} was not cancelled: ${error.message}`);
    }
    await this.poll();
  }
}

const stampsOf = (run) => run.milestones && stamps(run).length > 0;

/** The rows of the answer as objects. */
function table(steps) {
  if (!steps) return null;
  const rows = steps.rows.map((row) => Object.fromEntries(steps.columns.map((name, i) => [name, row[i]])));
  return { rows, complete: steps.complete };
}

function standing(run) {
  const { outcome } = run;
  const bound = run.waste_bound_tokens;
  const told = run.told && run.told !== outcome?.cause ? `readers were told ${run.told} before that was decided` : null;
  return h(
    "div",
    { class: "standing" },
    badge(run.state),
    outcome ? badge(`${outcome.kind}: ${outcome.cause}`, outcome.kind) : null,
    h("span", { text: `delivery ${run.delivery ?? "unknown"}` }),
    run.guarantee ? h("span", { class: run.guarantee === "confirmed" ? "good" : "warn", text: `end ${run.guarantee.replaceAll("_", " ")}` }) : null,
    bound ? h("span", { class: "warn", text: `at most ${plural(bound, "token")} can still be wasted` }) : null,
    run.on_disconnect && run.on_disconnect !== "cancel" ? h("span", { text: `on a disconnect: ${run.on_disconnect}` }) : null,
    run.model ? h("span", { class: "muted", text: run.model }) : null,
    h("span", { class: "muted", text: `attempt ${run.attempt}` }),
    outcome?.reason ? h("p", { class: "reason", text: outcome.reason }) : null,
    told ? h("p", { class: "reason", text: told }) : null,
  );
}

const key = () =>
  h("ul", { class: "legend small", "aria-label": "What the bars mean" }, ...[
    ["waiting", "waiting"], ["prefill", "prefill"], ["decode", "decode"], ["vain", "computed in vain"], ["held", "blocks still held"], ["wayline", "the cancel's way"],
  ].map(([kind, text]) => h("li", {}, h("i", { class: `key ${kind}` }), text)));

function pairs(title, list) {
  return h("div", {}, h("h3", { text: title }), h("dl", {}, ...list.flatMap(([name, value, bad]) => [h("dt", { text: name }), h("dd", { class: bad ? "wasted" : null, text: value })])));
}

function costs(run) {
  const { tokens: t, steps, blocks } = run;
  if (!t) return null;
  const vain = t.after_disconnect ?? 0;
  const prompt = t.prompt_computed_after_disconnect ?? 0;
  return pairs("Cost", [
    ["prompt tokens", `${count(t.prompt)} (${count(t.cached_prompt)} cached)`],
    ["generated", count(t.generated)],
    ["delivered", count(t.delivered)],
    ["wasted", `${plural(vain, "token")}${prompt ? `, ${count(prompt)} of the prompt` : ""}`, vain + prompt > 0],
    ["steps", steps ? `${count(steps.total)}, ${count(steps.after_disconnect)} after leaving` : "–", steps?.after_disconnect > 0],
    ...(steps?.layers_dropped ? [["dropped", `${plural(steps.layers_dropped, "layer")} of a step`]] : []),
    ...(t.overrun ? [["overrun", plural(t.overrun, "token")]] : []),
    ["blocks", blocks ? `${count(blocks.held)} now, ${count(blocks.peak)} at most, ${count(blocks.shared)} shared` : "–"],
  ]);
}

function crossings(run) {
  const crossed = (run.boundaries ?? []).filter(({ observed }) => observed !== null);
  const word = leaving(run);
  // In one process there is one clock, and nothing to say of it.
  const apart = crossed.some(({ clock_error_ms: error }) => error > 0);
  const rows = crossed.map(({ hop, observed, forwarded, acknowledged, clock_error_ms: error }) => {
    const after = (at) => (at === null ? "not yet" : `+${span(at - observed)}`);
    const late = forwarded === null || acknowledged === null;
    return h("tr", { class: late && run.state !== "ended" ? "warn" : null }, h("th", { scope: "row", text: hop.replace("-", " → ") }), ...[span(observed), after(forwarded), after(acknowledged), ...(apart ? [error ? `±${span(error)}` : "0"] : [])].map((text) => h("td", { class: "n", text })));
  });
  if (!rows.length) return h("div", {}, h("h3", { text: "Boundaries" }), h("p", { class: "muted", text: "Nobody left." }));
  const head = h("tr", {}, ...["", "observed", "forwarded", "acknowl.", ...(apart ? ["clock"] : [])].map((text, i) => h("th", { scope: "col", class: i ? "n" : null, text })));
  const phase = run.phase_at_disconnect?.replaceAll("_", " ");
  const superseded = run.superseded?.length ? `Too late, and changed nothing: ${run.superseded.join(", ")}.` : null;
  return h(
    "div",
    {},
    h("h3", { text: "Boundaries" }),
    h("div", { class: "wide" }, h("table", { class: "tight" }, h("thead", {}, head), h("tbody", {}, ...rows))),
    h("p", { class: "muted", text: `${word ? `The client ${word === "closed" ? "closed" : `was seen as ${word}`}` : "Abandoned"}${phase ? ` in ${phase}` : ""}.` }),
    superseded ? h("p", { class: "muted", text: superseded }) : null,
  );
}

/** The milestones as rows. */
function listed(run) {
  const gone = abandoned(run);
  const rows = stamps(run).map(({ name, at }) =>
    h("tr", {}, h("th", { scope: "row", text: name.replaceAll("_", " ") }), h("td", { class: "n", text: `+${at.toFixed(3)}` }), h("td", { class: "n", text: gone !== null && at > gone ? `+${(at - gone).toFixed(3)}` : "" }), h("td", { class: "muted", text: MILESTONES[name][1] })));
  const head = h("tr", {}, ...["Milestone", "ms", "after", ""].map((text, i) => h("th", { scope: "col", class: i === 1 || i === 2 ? "n" : null, text })));
  return h("div", { class: "wide" }, h("table", { class: "tight" }, h("thead", {}, head), h("tbody", {}, ...rows)));
}
