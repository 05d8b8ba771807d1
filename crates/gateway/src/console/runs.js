// The table of runs: those that live first, then those that ended last. Rows are kept and changed in place, so focus and reading stay.

import { get, query } from "./api.js";
import { $, badge, h, say, show } from "./dom.js";
import { age, count, plural } from "./format.js";
import { CAUSES, STATES } from "./words.js";

const LIVE_MAX = 500;
const ENDED_MAX = 200;

const option = (value, text = value) => h("option", { value, text });

export const idOf = (run) => (run.tenant ? `${run.tenant} ${run.id}` : run.id);

/** An id that is too long for a column: its beginning and its end, for the ids of one second begin alike. */
const short = (id) => (id.length > 22 ? `${id.slice(0, 8)}…${id.slice(-8)}` : id);

/** How a run is told of in a word. */
export const standing = (run) => (run.outcome && run.state === "ended" ? run.outcome.kind : run.state);

/** When it ended, by the server's clock, as far as its record says. */
export function endedAt(run) {
  const { settled, released } = run.milestones ?? {};
  return run.created_ms + (settled ?? released ?? 0);
}

export class Runs {
  constructor(choose, failed) {
    Object.assign(this, { choose, failed });
    this.rows = new Map();
    // All of them, for what is judged and drawn; and those in the table, which are fewer where a filter is set.
    Object.assign(this, { live: [], ended: [], table: null });
    this.body = $("runs-table").tBodies[0];
    $("f-state").append(option("", "all"), option("live"), ...STATES.map((state) => option(state)));
    $("f-cause").append(option("", "any"), ...CAUSES.map((cause) => option(cause)));
    $("filters").addEventListener("submit", (event) => event.preventDefault());
    for (const id of ["f-state", "f-cause", "f-tenant"]) $(id).addEventListener("change", () => this.poll(true).catch(this.failed));
    $("f-id").addEventListener("input", () => this.draw());
  }

  /** An operator sees every tenant's runs; everybody else only their own. */
  tenants(who) {
    show($("f-tenant-choice"), who.operator && who.keys);
    document.body.classList.toggle("tenants", who.operator && who.keys);
    if (!$("f-tenant").options.length) $("f-tenant").append(option("*", "all"), option(who.tenant));
  }

  filter() {
    const tenant = $("f-tenant-choice").hidden ? "" : $("f-tenant").value;
    return { state: $("f-state").value, cause: $("f-cause").value, tenant };
  }

  /** Lists those that live, and `all`, too, now and then, for what has ended changes more slowly. */
  async poll(all) {
    const { state, cause, tenant } = this.filter();
    const list = (words) => get(query("/v1/runs", { tenant, ...words }));
    const [live, ended] = await Promise.all([
      list({ state: "live", limit: LIVE_MAX }),
      all ? list({ state: "ended", limit: ENDED_MAX }) : null,
    ]);
    this.live = live.data;
    if (ended) [this.ended, this.moreEnded] = [ended.data, ended.has_more];
    this.moreLive = live.has_more;
    if (!state && !cause) this.table = null;
    else if (all || !this.table) this.table = await this.filtered(list, state, cause);
    this.draw();
  }

  /** Those that the filters let through, as the server finds them. */
  async filtered(list, state, cause) {
    const of = (state, limit) => list({ state, cause, limit }).then(({ data }) => data);
    const lists = [state !== "ended" ? of(state || "live", LIVE_MAX) : [], ["", "ended"].includes(state) ? of("ended", ENDED_MAX) : []];
    return (await Promise.all(lists)).flat();
  }

  /** Every run that is known, each once: one may have ended between the two questions. */
  all() {
    const ended = new Map(this.ended.map((run) => [idOf(run), run]));
    return [...this.live.filter((run) => !ended.has(idOf(run))), ...this.ended];
  }

  draw() {
    const part = $("f-id").value.trim();
    const runs = (this.table ?? this.all()).filter((run) => run.id.includes(part));
    const seen = new Set(runs.map(idOf));
    for (const [id, row] of this.rows) {
      if (seen.has(id)) continue;
      row.remove();
      this.rows.delete(id);
    }
    let before = this.body.firstElementChild;
    for (const run of runs) {
      const row = this.row(run);
      if (row === before) before = before.nextElementSibling;
      else this.body.insertBefore(row, before);
    }
    const live = runs.filter((run) => run.state !== "ended").length;
    say($("runs-count"), `${count(live)}${this.moreLive ? "+" : ""} live, ${count(runs.length - live)}${this.moreEnded ? "+" : ""} ended`);
    show($("runs-none"), runs.length === 0);
    show($("runs-table"), runs.length > 0);
    const filtered = part || this.filter().state || this.filter().cause;
    say($("runs-none"), filtered ? "No run is like that." : "No run yet. Ask the model something, and it appears here.");
    this.tenantsSeen(runs);
  }

  tenantsSeen(runs) {
    const known = new Set([...$("f-tenant").options].map(({ value }) => value));
    for (const { tenant } of runs) {
      if (!tenant || known.has(tenant) || known.size === 0) continue;
      known.add(tenant);
      $("f-tenant").append(option(tenant));
    }
  }

  row(run) {
    const id = idOf(run);
    let row = this.rows.get(id);
    if (!row) {
      row = h("tr", {}, ...Array.from({ length: 9 }, (_, i) => h("td", { class: i === 2 ? "tenant" : i > 3 ? "n" : null })));
      row.cells[1].append(h("button", { type: "button", class: "link id", onclick: () => this.choose(run.id, run.tenant), text: short(run.id), title: run.id, "aria-label": run.id }));
      row.addEventListener("click", (event) => event.target.closest("button") ?? this.choose(run.id, run.tenant));
      this.rows.set(id, row);
    }
    const [state, , tenant, cause, old, made, given, waste, blocks] = row.cells;
    const word = standing(run);
    if (row.dataset.word !== word) {
      state.replaceChildren(badge(word));
      row.dataset.word = word;
    }
    say(tenant, run.tenant ?? "");
    say(cause, run.outcome?.cause ?? (run.phase_at_disconnect ? `left in ${run.phase_at_disconnect.replaceAll("_", " ")}` : ""));
    say(old, run.created_ms ? age(this.now() - run.created_ms) : "–");
    const { tokens, blocks: held } = run;
    say(made, tokens ? count(tokens.generated) : "–");
    say(given, tokens?.delivered === undefined ? "–" : count(tokens.delivered));
    const wasted = (tokens?.after_disconnect ?? 0) + (tokens?.prompt_computed_after_disconnect ?? 0);
    say(waste, wasted ? count(wasted) : tokens ? "0" : "–");
    waste.classList.toggle("wasted", wasted > 0);
    say(blocks, held ? (held.held ? count(held.held) : "0") : "–");
    blocks.title = held ? `${plural(held.held, "block")} now, ${count(held.peak)} at most` : "";
    row.classList.toggle("chosen", id === this.chosen);
    if (id === this.chosen) row.setAttribute("aria-current", "true");
    else row.removeAttribute("aria-current");
    return row;
  }

  mark(id, tenant) {
    this.chosen = id === null ? null : idOf({ id, tenant });
    this.draw();
  }

  now() {
    return Date.now() + (this.skew ?? 0);
  }
}
