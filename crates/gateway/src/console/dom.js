// Elements, made from data. Text goes in as text only, so nothing that a caller chose can become markup.

const SVG = "http://www.w3.org/2000/svg";

export const $ = (id) => document.getElementById(id);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "text") element.textContent = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** An HTML element. */
export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);

/** An SVG element. */
export const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

/** Sets an element's text, and touches nothing where it is the same: what is read aloud or selected stays as it is. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Shows or hides. */
export function show(element, shown) {
  if (element.hidden === shown) element.hidden = !shown;
}

/** A word's colour comes from its class; the word is always there, so nothing is told by colour alone. */
export const badge = (word, kind = word) => h("span", { class: `badge ${kind}`, text: word });

/** Replaces what is in an element if `what`, a description of it, has changed. Whoever has the focus in it keeps it. */
export function redraw(element, what, draw) {
  if (element.drawn === what) return;
  element.drawn = what;
  const focused = element.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
  element.replaceChildren(...[draw()].flat().filter(Boolean));
  if (focused) element.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus();
}
