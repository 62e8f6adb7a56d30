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

class Scale {
  // The largest value is that of all columns on the page, without the uppermost hundredth: one
  // outlier must not bleach the rest. The legend says when values lie beyond.
  constructor(quantity, columns) {
    this.quantity = quantity;
    this.signed = Boolean(quantity.signed);
    const sizes = [];
    for (const column of columns) {
      const stride = Math.max(1, Math.ceil(column.length / 20000));
      for (let i = 0; i < column.length; i += stride) {
        const size = Math.abs(column[i]);
        if (Number.isFinite(size)) sizes.push(size);
      }
    }
    const sorted = Float64Array.from(sizes).sort();
    const largest = sorted.length ? sorted[sorted.length - 1] : 0;
    const robust = sorted.length ? sorted[Math.floor((sorted.length - 1) * 0.99)] : 0;
    this.most = quantity.most ?? (robust > 0 ? robust : largest);
    if (!(this.most > 0)) this.most = 1;
    this.clipped = largest > this.most;
  }

  ramp(value) {
    if (!this.signed) return "seq";
    return value < 0 ? "neg" : "pos";
  }

  classOf(value) {
    if (!Number.isFinite(value)) return "";
    const level = Math.min(LEVELS, Math.round((Math.abs(value) / this.most) * LEVELS));
    return RAMPS[this.ramp(value)][level];
  }

  legend() {
    const bar = make("span", "bar");
    bar.setAttribute("aria-hidden", "true");
    for (let level = this.signed ? -LEVELS : 0; level <= LEVELS; level += 2) {
      bar.append(make("span", `swatch ${this.classOf((level / LEVELS) * this.most)}`));
    }
    const beyond = this.clipped ? "≥ " : "";
    const high = make("span", "number", beyond + number(this.most, 2, this.signed));
    const parts = [bar, high];
    if (this.signed) {
      parts.unshift(make("span", "number", (this.clipped ? "≤ " : "") + number(-this.most, 2)));
      parts.push(make("span", "muted", "down · up"));
    } else parts.unshift(make("span", "number", "0"));
    return parts;
  }
}
