// Elements. What a message says goes in as text and can be nothing else: nothing here reads markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes, `on` listeners, and children: elements or texts; what is null is left out. */
export function el(name, given = {}, ...children) {
  return fill(document.createElement(name), given, children);
}

/** The same for SVG. */
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

/** A button that says what it does; `act` may take its time, during which it does nothing more. */
export function button(text, act, given = {}) {
  const made = el("button", { type: "button", ...given }, text);
  made.addEventListener("click", () => once(made, act));
  return made;
}

/** A form that does `act` with what its fields hold by name, without those that are empty. */
export function form(given, act, ...children) {
  const made = el("form", given, ...children);
  made.addEventListener("submit", (event) => {
    event.preventDefault();
    once(made, () => act(values(made)));
  });
  return made;
}

/** Not `disabled` while at work: a control that is disabled loses the focus. */
async function once(element, act) {
  if (element.ariaBusy === "true") return;
  element.ariaBusy = "true";
  try {
    await act();
  } finally {
    element.ariaBusy = null;
  }
}

/** A labelled field: an input, or a textarea when `rows` is given. */
export function field(label, given = {}) {
  const { hint, ...attributes } = given;
  const control = el(attributes.rows ? "textarea" : "input", { autocomplete: "off", spellcheck: "false", ...attributes });
  return el("label", { class: "field" }, el("span", {}, label), control, hint ? el("small", { class: "quiet" }, hint) : null);
}

/** What a form's fields hold, by name, without those that are empty. */
function values(element) {
  return Object.fromEntries([...new FormData(element)].filter(([, value]) => value !== ""));
}

/** Put new content into a place; the focus stays on the element with the same `data-key`, and a table stays scrolled. */
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

/** The same for what comes unasked: nothing changes under a pressed mouse or a selection, or without need. */
export function renew(place, content) {
  const selection = document.getSelection();
  if (selection && !selection.isCollapsed && place.contains(selection.anchorNode)) return;
  if (place.matches(":active") || place.children[0]?.isEqualNode(content)) return;
  replace(place, content);
}
