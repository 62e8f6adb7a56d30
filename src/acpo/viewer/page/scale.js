// What tokens can be coloured by, and how a value becomes a colour.

const LEVELS = 16;

// `of(completion, method)` gives the column; a quantity is offered where the trace has it.
const QUANTITIES = [
  {
    key: "update",
    label: "update",
    hint: "how far this token moves: the component of the logit gradient along e_y − p",
    signed: true,
    perMethod: true,
    of: (c, method) => c.methods[method]?.update,
  },
  {
    key: "credit",
    label: "credit c",
    hint: "the multiplier of the advantage",
    perMethod: true,
    of: (c, method) => (method ? c.methods[method]?.credit : c.columns.credit),
  },
  {
    key: "advantage",
    label: "advantage A",
    hint: "of the token, after the method's shaping",
    signed: true,
    perMethod: true,
    of: (c, method) => (method ? c.methods[method]?.advantage : c.columns.advantage),
  },
  {
    key: "delta",
    label: "δ = 1 − p_max",
    hint: "probability outside the policy's mode",
    most: 1,
    of: (c) => c.columns.delta,
  },
  {
    key: "entropy",
    label: "entropy",
    hint: "Shannon entropy of the policy, nats",
    of: (c) => c.columns.entropy,
  },
  {
    key: "ratio",
    label: "log-ratio log w",
    hint: "log-probability under the scored policy less that under the sampling one",
    signed: true,
    of: (c) => derived(c, "ratio", c.columns.logp, c.columns.old_logp, (now, old) => now - old),
  },
  {
    key: "mismatch",
    label: "mode mismatch",
    hint: "p_max − p(y): how far the sampled token is from the policy's mode",
    most: 1,
    of: (c) =>
      derived(c, "mismatch", c.columns.logp, c.columns.log_pmax, (y, top) =>
        Math.max(0, Math.exp(top) - Math.exp(y)),
      ),
  },
  {
    key: "difference",
    label: "update, less the first method's",
    hint: "where a method moves a token further up or down than the first one on the page does",
    signed: true,
    perMethod: true,
    of: (c, method) => {
      const [first] = Object.keys(c.methods);
      if (!first || Object.keys(c.methods).length < 2) return undefined;
      const own = c.methods[method];
      own.difference ??= own.update.map((value, i) => value - c.methods[first].update[i]);
      return own.difference;
    },
  },
];

// For a trace that holds tokens and nothing about them.
const NOTHING = {
  key: "nothing",
  label: "nothing",
  hint: "the trace holds no numbers",
  of: (c) => new Float32Array(c.length).fill(NaN),
};

function derived(completion, name, left, right, combine) {
  if (!left || !right) return undefined;
  completion.columns[name] ??= left.map((value, i) => combine(value, right[i]));
  return completion.columns[name];
}

// Whether the update goes against the advantage.
function isReversed(completion, method, i) {
  const columns = completion.methods[method];
  return columns ? columns.update[i] * columns.advantage[i] < 0 : false;
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
