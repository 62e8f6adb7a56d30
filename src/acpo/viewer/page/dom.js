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

// "−0.125": the same width and the same minus everywhere; "–" for what is not known.
function number(value, digits = 3, signed = false) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  let text;
  const tiny = size !== 0 && size < 0.5 * 10 ** -digits;
  if (size >= 1e6 || (tiny && digits > 2)) text = size.toExponential(1);
  else text = size.toFixed(digits);
  if (value < 0) return "−" + text;
  return signed && value > 0 ? "+" + text : text;
}

// "1", "0.5": as short as it is exact to two digits.
const short = (value) => number(value, 2).replace(/\.0+$|(\.\d*[1-9])0+$/, "$1");

const count = (n, noun) => `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;

// Light, dark, or as the system says.
function themeButton(button, onChange) {
  const order = ["auto", "light", "dark"];
  let current = 0;
  const step = () => {
    current = (current + 1) % order.length;
    document.documentElement.dataset.theme = order[current];
    button.title = `Theme: ${order[current]}`;
    button.setAttribute("aria-label", button.title);
    onChange();
  };
  button.addEventListener("click", step);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", onChange);
  return step;
}
