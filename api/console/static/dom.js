// Elements. Contents of messages are inserted as text only; no function here parses markup.

const SVG = "http://www.w3.org/2000/svg";

/** Create an element with attributes, `on` listeners and children: elements or texts. Nulls are left out. */
export function el(name, given = {}, ...children) {
  return fill(document.createElement(name), given, children);
}

/** Create an SVG element, with the arguments of `el`. */
export function svg(name, given = {}, ...children) {
  return fill(document.createElementNS(SVG, name), given, children);
}

function fill(element, { on = {}, ...attributes }, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  for (const [name, listener] of Object.entries(on)) element.addEventListener(name, listener);
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/**
 * A button; `act` may be asynchronous, and until it ends the button ignores further clicks. The second click of a double
 * click may come when another button is in its place, as Resume is after Pause: only a button that `repeats` takes it.
 */
export function button(text, act, { repeats = false, ...given } = {}) {
  const made = el("button", { type: "button", ...given }, text);
  made.addEventListener("click", ({ detail: clicks }) => (repeats || clicks < 2) && once(made, act));
  return made;
}

/** A form that calls `act` with the values of its non-empty fields, by name. */
export function form(given, act, ...children) {
  const made = el("form", given, ...children);
  made.addEventListener("submit", (event) => {
    event.preventDefault();
    once(made, () => act(values(made)));
  });
  return made;
}

/** Mark a control as busy. Not with `disabled`: a disabled control loses the focus. */
async function once(element, act) {
  if (element.ariaBusy === "true") return;
  element.ariaBusy = "true";
  try {
    await act();
  } finally {
    element.ariaBusy = null;
  }
}

/** A labelled field: an input, or a textarea with `text` when `rows` is given. */
export function field(label, given = {}) {
  const { hint, text = null, ...attributes } = given;
  const control = el(attributes.rows ? "textarea" : "input", { autocomplete: "off", spellcheck: "false", ...attributes }, text);
  return el("label", { class: "field" }, el("span", {}, label), control, hint ? el("small", { class: "quiet" }, hint) : null);
}

/** A labelled choice of [value, text]. */
export function select(label, name, options) {
  return el("label", { class: "field" }, el("span", {}, label),
    el("select", { name }, options.map(([value, text]) => el("option", { value }, text))));
}

/** The values of a form's non-empty fields, by name. */
function values(element) {
  return Object.fromEntries([...new FormData(element)].filter(([, value]) => value !== ""));
}

/** Replace the content of an element; keeps the focus on the same `data-key`, and the scroll position of a table. */
export function replace(place, content) {
  const [before] = place.children;
  const focused = document.activeElement;
  const held = place.contains(focused) ? focused : null;
  const [left, top] = [before?.scrollLeft, before?.scrollTop];
  place.replaceChildren(content);
  if (left || top) content.scrollTo(left, top);
  if (held && held === before) content.focus({ preventScroll: true });
  else if (held?.dataset.key !== undefined) {
    place.querySelector(`[data-key="${CSS.escape(held.dataset.key)}"]`)?.focus({ preventScroll: true });
  }
}

/** Show that other content loads: what was there is gone, and its height stays, so that nothing below moves. */
export function wait(place) {
  const height = place.offsetHeight;
  place.style.minHeight = height ? `${height}px` : "";
  place.ariaBusy = "true";
  place.replaceChildren(el("p", { class: "empty loading" }, "Loading"));
}

/** Show content that was waited for. */
export function arrived(place, content) {
  replace(place, content);
  place.ariaBusy = null;
  place.style.minHeight = "";
}

/** Replace content that updates by itself: not under a pressed mouse or a selection, and only if it differs. */
export function renew(place, content) {
  const selection = document.getSelection();
  if (selection && !selection.isCollapsed && place.contains(selection.anchorNode)) return;
  if (place.matches(":active") || place.children[0]?.isEqualNode(content)) return;
  replace(place, content);
}
