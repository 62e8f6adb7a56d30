// What tokens can be coloured by, and how a value becomes a colour.

const LEVELS = 16;

const ofMethod = (name) => (c, method) => (method ? c.methods[method]?.[name] : c.columns[name]);
const ofPolicy = (name) => (c) => c.columns[name];

// A column of two others, made once; undefined where the trace lacks one of them.
const derived = (name, left, right, combine) => (c) => {
  const [a, b] = [c.columns[left], c.columns[right]];
  if (!a || !b) return undefined;
  c.columns[name] ??= a.map((value, i) => combine(value, b[i]));
  return c.columns[name];
};

function difference(c, method) {
  const [first, second] = app.page.methods.map(({ name }) => name); // keys such as 8020 sort first
  if (!second) return undefined;
  const own = c.methods[method];
  own.difference ??= own.update.map((value, i) => value - c.methods[first].update[i]);
  return own.difference;
}

// [key, label, hint, column of a completion and a method, what kind of numbers]. A quantity is
// offered where the trace has it.
const QUANTITIES = [
  ["update", "update", "how far this token moves: the component of the logit gradient along e_y − p",
    ofMethod("update"), { signed: true, perMethod: true }],
  ["credit", "credit c", "the multiplier of the advantage",
    ofMethod("credit"), { perMethod: true }],
  ["advantage", "advantage A", "of the token, after the method's shaping",
    ofMethod("advantage"), { signed: true, perMethod: true }],
  ["delta", "δ = 1 − p_max", "probability outside the policy's mode",
    ofPolicy("delta"), { most: 1 }],
  ["entropy", "entropy", "Shannon entropy of the policy, nats",
    ofPolicy("entropy"), {}],
  ["ratio", "log-ratio log w", "log-probability under the scored policy less that under the sampling one",
    derived("ratio", "logp", "old_logp", (now, old) => now - old), { signed: true }],
  ["mismatch", "mode mismatch", "p_max − p(y): how far the sampled token is from the policy's mode",
    derived("mismatch", "logp", "log_pmax", (y, top) => Math.max(0, Math.exp(top) - Math.exp(y))),
    { most: 1 }],
  ["difference", "update, less the first method's",
    "where a method moves a token further up or down than the first one on the page does",
    difference, { signed: true, perMethod: true }],
].map(([key, label, hint, of, kind]) => ({ key, label, hint, of, ...kind }));

// For a trace that holds tokens and nothing about them.
const NOTHING = {
  key: "nothing",
  label: "nothing",
  hint: "the trace holds no numbers",
  of: (c) => new Float32Array(c.length).fill(NaN),
};

// Whether the update goes against the advantage.
function isReversed(completion, method, i) {
  const columns = completion.methods[method];
  return columns ? columns.update[i] * columns.advantage[i] < 0 : false;
}

function isUnknown(completion, method, i) {
  return Number.isNaN(completion.methods[method]?.update[i]);
}

function isMismatch(completion, i) {
  return completion.columns.is_mode ? completion.columns.is_mode[i] === 0 : false;
}

// The first token the policy would not have chosen, if it is near the beginning.
function firstMismatch(completion) {
  for (let i = 0; i < Math.min(completion.length, 150); i++) {
    if (isMismatch(completion, i)) return i;
  }
  return 0;
}

const RAMPS = Object.fromEntries(
  ["seq", "pos", "neg"].map((ramp) => [
    ramp,
    Array.from({ length: LEVELS + 1 }, (_, level) => (level ? `${ramp} l${level}` : "")),
  ]),
);

// How colours are spread over values.
const SCALES = [
  { key: "own", label: "per method and sign", hint: "each method's rises and falls fill their ramps" },
  { key: "method", label: "per method", hint: "one scale for both signs of a method" },
  { key: "shared", label: "one for all methods", hint: "colours compare across methods", shared: true },
  {
    key: "log",
    label: "one for all, logarithmic",
    hint: "symmetric: small values show beside large ones",
    shared: true,
    log: true,
  },
];
const LOG_REACH = 1000; // a value so many times smaller than the largest is nearly blank

// The largest size among some values, without the uppermost hundredth: one outlier must not bleach
// the rest. The legend says when values lie beyond.
function reachOf(sizes) {
  const sorted = Float64Array.from(sizes).sort();
  const largest = sorted.length ? sorted[sorted.length - 1] : 0;
  const robust = sorted.length ? sorted[Math.floor((sorted.length - 1) * 0.99)] : 0;
  const most = robust > 0 ? robust : largest;
  return { most, clipped: largest > most };
}

class Scale {
  constructor(quantity, columns, spread = SCALES[0]) {
    this.quantity = quantity;
    this.signed = Boolean(quantity.signed);
    this.log = Boolean(spread.log);
    const sizes = { 1: [], "-1": [] };
    this.known = 0;
    for (const column of columns) {
      const stride = Math.max(1, Math.ceil(column.length / 20000));
      for (let i = 0; i < column.length; i += stride) {
        if (!Number.isFinite(column[i])) continue;
        this.known += 1;
        if (column[i]) sizes[Math.sign(column[i])].push(Math.abs(column[i]));
      }
    }
    const all = () => reachOf([...sizes[1], ...sizes[-1]]);
    const bySign = this.signed && spread.key === "own";
    this.up = bySign ? reachOf(sizes[1]) : all();
    this.down = bySign ? reachOf(sizes[-1]) : this.up;
    if (quantity.most) this.up = this.down = { most: quantity.most, clipped: false };
  }

  ramp(value) {
    if (!this.signed) return "seq";
    return value < 0 ? "neg" : "pos";
  }

  // From -1 to 1: how much of its ramp a value fills.
  share(value) {
    const { most } = value < 0 ? this.down : this.up;
    if (!most || !Number.isFinite(value)) return 0;
    const size = Math.min(1, Math.abs(value) / most);
    const shown = this.log ? Math.log1p(size * LOG_REACH) / Math.log1p(LOG_REACH) : size;
    return value < 0 ? -shown : shown;
  }

  classOf(value) {
    const level = Math.round(Math.abs(this.share(value)) * LEVELS);
    return RAMPS[this.ramp(value)][level];
  }

  // Where a trace gives every token the same nothing, no ends of a scale are made up.
  legend() {
    if (!this.known) return [make("span", "muted", "not known here")];
    if (!this.up.most && !this.down.most) return [make("span", "muted", "0 at every token")];
    const bar = make("span", "bar");
    bar.setAttribute("aria-hidden", "true");
    for (let level = this.signed ? -LEVELS : 0; level <= LEVELS; level += 2) {
      const filled = level < 0 ? this.down.most : this.up.most;
      const ramp = filled ? RAMPS[this.ramp(level)][Math.abs(level)] : "";
      bar.append(make("span", `swatch ${ramp}`));
    }
    const end = ({ most, clipped }, sign, mark) =>
      make("span", "number", (clipped ? `${mark} ` : "") + number(sign * most, 2, this.signed));
    const parts = [bar, end(this.up, 1, "≥")];
    if (this.signed) {
      parts.unshift(end(this.down, -1, "≤"));
      parts.push(make("span", "muted", "down · up"));
    } else parts.unshift(make("span", "number", "0"));
    return parts;
  }
}
