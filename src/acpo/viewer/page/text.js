// Token text as nodes: what is invisible, or would move other text, becomes a visible mark.

const LONGEST = 240; // characters of one token on the page; the inspector shows more

const NAMES = {
  "\u00a0": "NBSP", "\u00ad": "SHY", "\u061c": "ALM", "\u200b": "ZWSP",
  "\u200c": "ZWNJ", "\u200d": "ZWJ", "\u200e": "LRM", "\u200f": "RLM",
  "\u2028": "LS", "\u2029": "PS", "\u202a": "LRE", "\u202b": "RLE",
  "\u202c": "PDF", "\u202d": "LRO", "\u202e": "RLO", "\u2060": "WJ",
  "\u2066": "LRI", "\u2067": "RLI", "\u2068": "FSI", "\u2069": "PDI",
  "\ufeff": "BOM",
};

// Emoji keep the selectors and joiners that make them one picture.
const KEPT =
  "(?<=\\p{Emoji})\\ufe0f|(?<=[\\p{Extended_Pictographic}\\p{Emoji_Modifier}\\ufe0f])\\u200d(?=\\p{Extended_Pictographic})";
const MARKED =
  "[\\p{Cc}\\p{Cf}\\p{Cs}\\p{Co}\\p{Zl}\\p{Zp}\\p{DI}\\u00a0\\u1680\\u2000-\\u200a\\u202f\\u205f\\u3000]";
const STACKED = "(?<=\\p{M}{3})\\p{M}+";
const SPECIAL = new RegExp(`(${KEPT})|(${MARKED})|(${STACKED})`, "gu");
const MAYBE_SPECIAL = new RegExp(`${MARKED}|^\\p{M}|\\p{M}{4}`, "u");

// The mark of one character that has no shape of its own.
function markOf(character) {
  const code = character.codePointAt(0);
  if (code === 10) return "↵";
  if (code === 9) return "⇥";
  if (code < 32) return String.fromCodePoint(0x2400 + code);
  if (code === 127) return "␡";
  const hex = (value) => value.toString(16).toUpperCase();
  if (code >= 0xdc80 && code <= 0xdcff) return hex(code - 0xdc00);
  return NAMES[character] ?? `U+${hex(code).padStart(4, "0")}`;
}

function markClass(character) {
  const code = character.codePointAt(0);
  if (code >= 0xdc80 && code <= 0xdcff) return "mark byte";
  return code === 10 || code === 9 ? "mark space" : "mark";
}

// Put a token's text into an element.
function showText(element, text, longest = LONGEST) {
  let rest = 0;
  if (text.length > longest) {
    // A cut must not fall between the halves of a surrogate pair.
    const cut = longest - (/[\ud800-\udbff]/.test(text[longest - 1]) ? 1 : 0);
    rest = text.length - cut;
    text = text.slice(0, cut);
  }
  if (!rest && text !== "" && !MAYBE_SPECIAL.test(text)) {
    element.textContent = text;
    return;
  }
  if (text === "") element.append(make("span", "mark", "∅"));
  if (/^\p{M}/u.test(text)) element.append("\u25cc");
  let at = 0;
  for (const match of text.matchAll(SPECIAL)) {
    if (match[1]) continue;
    if (at < match.index) element.append(text.slice(at, match.index));
    const [found] = match;
    at = match.index + found.length;
    if (match[3]) {
      element.append(make("span", "mark", `+${[...found].length}`));
      continue;
    }
    element.append(make("span", markClass(found), markOf(found)));
    if (found === "\n" || found === "\t") element.append(found);
  }
  if (at < text.length) element.append(text.slice(at));
  if (rest) element.append(make("span", "mark", `… +${rest.toLocaleString("en")}`));
}

// What a chat template puts around a prompt, folded away.
function showTemplate(element, text) {
  if (!text) return;
  const details = element.appendChild(make("details", "template"));
  details.append(make("summary", "", "template"));
  showText(details.appendChild(make("bdi")), text, 20000);
}

// A prompt and its gold answer, as far as the trace has them.
function showPrompt(element, { prompt, answer }) {
  fill(element);
  if (!prompt.known) element.append(make("span", "muted", "The trace holds no prompt text."));
  else {
    showTemplate(element, prompt.before);
    showText(element.appendChild(make("bdi")), prompt.text, 20000);
    showTemplate(element, prompt.after);
  }
  if (answer === null) return;
  const gold = element.appendChild(make("span", "gold"));
  gold.append(make("span", "muted", "gold "));
  showText(gold.appendChild(make("bdi")), answer, 400);
}

// Text as one line of plain text, for labels.
function plainText(text, longest = 60) {
  let plain = "";
  for (const character of text) {
    plain += new RegExp(`^${MARKED}`, "u").test(character) ? markOf(character) : character;
    if (plain.length >= longest) return plain + "…";
  }
  return plain;
}
