// What the server says. The key is kept for the tab (sessionStorage), goes out in one header and nowhere else.

const KEPT = "kvit.key";
const PATIENCE_MS = 10_000;

export class Refused extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export const key = {
  get: () => sessionStorage.getItem(KEPT),
  set: (text) => (text ? sessionStorage.setItem(KEPT, text) : sessionStorage.removeItem(KEPT)),
};

async function ask(path, init) {
  const headers = key.get() ? { Authorization: `Bearer ${key.get()}` } : {};
  const signal = AbortSignal.timeout(PATIENCE_MS);
  const answer = await fetch(path, { headers, signal, cache: "no-store", credentials: "omit", ...init });
  const text = await answer.text();
  if (answer.ok) return text;
  let error = {};
  try {
    error = JSON.parse(text).error ?? {};
  } catch {
    // A proxy in between has words of its own.
  }
  throw new Refused(answer.status, error.code ?? null, error.message ?? `the server answered ${answer.status}`);
}

export const get = async (path) => JSON.parse(await ask(path));
export const post = async (path) => JSON.parse(await ask(path, { method: "POST" }));

/** The answer, or null where there is nothing there, or nothing for this key. */
export async function find(path) {
  try {
    return await get(path);
  } catch (error) {
    if (error instanceof Refused && [403, 404, 410].includes(error.status)) return null;
    throw error;
  }
}

/** The samples of /metrics by name: each the sum over its labels, and by the values of one label where there is one. */
export async function metrics() {
  const families = new Map();
  for (const line of (await ask("/metrics")).split("\n")) {
    const parts = /^([a-z_]+)(?:\{(.*)\})? ([0-9.e+-]+)/.exec(line);
    if (!parts) continue;
    const [, name, labels, value] = parts;
    const family = families.get(name) ?? { sum: 0, samples: [] };
    family.sum += Number(value);
    family.samples.push([labels ?? "", Number(value)]);
    families.set(name, family);
  }
  return families;
}

/** A query, without what is empty. */
export function query(path, words) {
  const given = Object.entries(words).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return given.length ? `${path}?${new URLSearchParams(given)}` : path;
}

export const run = (id, tenant, rest = "") => query(`/v1/runs/${encodeURIComponent(id)}${rest}`, { tenant });
