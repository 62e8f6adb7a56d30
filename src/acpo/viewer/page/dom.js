// Elements are made here and nowhere else; text only ever becomes a text node.

const $ = (id) => document.getElementById(id);

function make(tag, className = "", text = "") {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== "") element.textContent = text;
  return element;
}

function fill(element, ...children) {
  element.replaceChildren(...children);
  return element;
}

function option(text, value, hint = "") {
  const element = make("option", "", text);
  element.value = value;
  element.title = hint;
  return element;
}

// A radio button inside its label.
function choice(name, text, checked, onChoose) {
  const label = make("label");
  const radio = label.appendChild(make("input"));
  Object.assign(radio, { type: "radio", name, checked });
  radio.addEventListener("change", onChoose);
  label.append(` ${text}`);
  return label;
}

const on = (id, type, action) => $(id).addEventListener(type, action);

// "−0.125": the same width and the same minus everywhere; "–" for what is not known.
function number(value, digits = 3, signed = false) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  const tiny = size !== 0 && size < 0.5 * 10 ** -digits;
  const text = size >= 1e6 || (tiny && digits > 2) ? size.toExponential(1) : size.toFixed(digits);
  if (value < 0) return "−" + text;
  return signed && value > 0 ? "+" + text : text;
}

// "1", "0.5": as short as it is exact to two digits.
const short = (value) => number(value, 2).replace(/\.0+$|(\.\d*[1-9])0+$/, "$1");

const count = (n, noun) => `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;

// Light, dark, or as the system says.
function nextTheme() {
  const order = ["auto", "light", "dark"];
  const root = document.documentElement.dataset;
  root.theme = order[(order.indexOf(root.theme ?? "auto") + 1) % order.length];
  $("theme").title = `Theme: ${root.theme}`;
  $("theme").setAttribute("aria-label", $("theme").title);
}

// The keys of a page, [keys, meaning, action], and the dialog that lists them. An action is given
// the key; what has none is done by the pane of tokens or by the browser.
function bindKeys(table) {
  const keys = [
    ...table,
    ["t", "theme: as the system, light, dark", () => $("theme").click()],
    ["?", "these keys", () => $("help").showModal()],
  ];
  const list = keys.flatMap(([names, meaning]) => {
    const term = make("dt");
    term.append(...names.split(" ").flatMap((key) => [make("kbd", "", key), " "]));
    return [term, make("dd", "", meaning)];
  });
  fill($("keys"), ...list);
  on("theme", "click", nextTheme);
  on("help-open", "click", () => $("help").showModal());
  on("help-close", "click", () => $("help").close());
  document.addEventListener("keydown", (event) => {
    const { key, target } = event;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (document.querySelector("dialog[open]")) return;
    if (target.matches("input[type=search], input[type=text], select")) return;
    const own = /^[1-9]$/.test(key) ? "1" : key;
    const found = keys.find(([names, , action]) => action && names.split(" ").includes(own));
    if (!found) return;
    event.preventDefault();
    found[2](key);
  });
}
