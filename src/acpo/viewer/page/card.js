// One completion: what became of it, and its tokens once per method on show.

const LEAST_FOLD = 16; // tokens that a completion above shows already, and that are worth a fold

const VERDICTS = new Map([
  ["correct", ["✓", "good"]],
  ["incorrect", ["✗", "bad"]],
]);

// Training writes rewards and no verdicts.
function isRight({ verdict, reward }) {
  return verdict === null ? reward > 0 : verdict === "correct";
}

// Whether the policy had diverged here.
function isBroken({ columns, length }) {
  return length > 0 && ["logp", "entropy"].some((name) => columns[name]?.some((x) => !Number.isFinite(x)));
}

// Whether token i is part of the first error.
function isError({ error }, i) {
  return Boolean(error) && error.span[0] <= i && i < error.span[1];
}

// The share of a method's negative update before, at and after the first error; null where unknown.
function blameOf(completion, method) {
  const update = completion.methods[method]?.update;
  if (!completion.error || !update) return null;
  const [first, end] = completion.error.span;
  const parts = [0, 0, 0];
  for (let i = 0; i < update.length; i++) {
    if (Number.isNaN(update[i])) return null;
    parts[i < first ? 0 : i < end ? 1 : 2] += Math.max(-update[i], 0);
  }
  const total = parts[0] + parts[1] + parts[2];
  return total > 0 ? parts.map((part) => part / total) : null;
}

function outcomeOf({ verdict, reward }) {
  if (verdict !== null) return [...(VERDICTS.get(verdict) ?? ["?", "muted"]), plainText(verdict, 24)];
  if (reward === null) return ["?", "muted", "no verdict"];
  return reward > 0 ? ["✓", "good", "rewarded"] : ["✗", "bad", "not rewarded"];
}

// Completions of one text and reward, together: a policy that repeats itself is read once.
function distinct(completions) {
  const groups = new Map();
  for (const completion of completions) {
    const key = `${completion.reward} ${completion.columns.token_id.join(" ")}`;
    if (groups.has(key)) groups.get(key).push(completion);
    else groups.set(key, [completion]);
  }
  return [...groups.values()];
}

// How far each completion goes with one above it on the page, and with any other at all.
function relate(completions) {
  const ids = completions.map(({ columns }) => columns.token_id);
  const together = (a, b) => {
    const most = Math.min(a.length, b.length);
    let n = 0;
    while (n < most && a[n] === b[n]) n += 1;
    return n;
  };
  return ids.map((own, k) => {
    const shared = ids.map((other, j) => (j === k ? 0 : together(own, other)));
    return { above: Math.max(0, ...shared.slice(0, k)), fork: Math.max(0, ...shared) };
  });
}

// Where a method's update goes: by its sign, by whether the token is the mode, and how much of it
// falls on the tenth of the tokens that has most; null where an update is not known.
function budgetOf(completions, method) {
  const parts = [0, 0, 0, 0];
  const sizes = [];
  for (const completion of completions) {
    completion.methods[method]?.update.forEach((value, i) => {
      parts[(value < 0 ? 2 : 0) + isMismatch(completion, i)] += Math.abs(value);
      sizes.push(Math.abs(value));
    });
  }
  const total = parts.reduce((sum, part) => sum + part, 0);
  if (!total || sizes.length < 10) return null;
  const top = Float64Array.from(sizes).sort().slice(-Math.ceil(sizes.length / 10));
  const share = (part) => part / total;
  return { parts: parts.map(share), top: share(top.reduce((sum, size) => sum + size, 0)) };
}

function budgetBar(completions, method) {
  const budget = budgetOf(completions, method);
  if (!budget) return [];
  const bar = make("p", "budget");
  const names = ["up on the mode", "up off it", "down on the mode", "down off it"];
  const said = names.map((name, part) => {
    const percent = 100 * budget.parts[part];
    const segment = bar.appendChild(make("span", ["pos l14", "pos l6", "neg l14", "neg l6"][part]));
    segment.style.width = `${percent}%`;
    return `${number(percent, 0)}% ${name}`;
  });
  const top = `${number(100 * budget.top, 0)}% of the update on a tenth of the tokens`;
  bar.title = `update: ${said.join(", ")}; ${top}`;
  bar.setAttribute("role", "img");
  bar.setAttribute("aria-label", bar.title);
  return [bar];
}

class Card {
  constructor(app, [completion, ...others], { above, fork }) {
    this.app = app;
    this.completion = completion;
    this.folded = above >= LEAST_FOLD ? above : 0;
    this.fork = fork < completion.length ? fork : 0;
    this.samples = [completion, ...others].map(({ sample }) => sample);
    this.element = make("article", "card");
    this.element.setAttribute("aria-label", `completion ${completion.sample}`);
    const body = make("div", "views");
    this.views = app.shownMethods().map((method) => this.view(method));
    body.append(...this.views.map((view) => view.element));
    this.element.append(this.head(), body);
  }

  head() {
    const { completion } = this;
    const head = make("header", "facts");
    const [sign, tone, outcome] = outcomeOf(completion);
    head.append(
      make("span", "sample", this.samples.map((sample) => `#${sample}`).join(" ")),
      make("span", tone, `${sign} ${outcome}`),
      make("span", "number", `reward ${short(completion.reward)}`),
      make("span", "number", `A ${number(completion.advantage, 2, true)}`),
      make("span", "number muted", count(completion.length, "token")),
    );
    if (this.samples.length > 1) head.append(make("b", "", `${this.samples.length} times`));
    if (isBroken(completion)) head.append(make("span", "bad", "not finite"));
    if (completion.error) {
      const { span, evidence } = completion.error;
      head.append(make("span", "first-error", `first error at token ${span[0] + 1}, ${evidence}`));
    }
    if (completion.truncated) head.append(make("span", "bad", "cut off"));
    return head;
  }

  view(method) {
    const { app, completion } = this;
    const view = { method, completion, element: make("section", "view") };
    const title = app.titleOf(method);
    view.column = app.quantity.of(completion, method);
    view.scale = app.scaleOf(method);
    view.isDim = (i) => app.isDim(completion, method, i);
    view.pane = new TokenPane(completion, {
      folded: this.folded,
      label: `completion ${completion.sample}${title ? `, ${title}` : ""}: tokens`,
      classOf: (i) => this.classOf(view, i),
      labelOf: (i) => (app.state.values ? number(view.column[i], 2, view.scale.signed) : undefined),
      onPoint: (i) => app.point(this, i),
      onActive: (i) => this.activated(view, i),
      onScroll: () => this.scrolled(view),
      onUnfold: (i) => this.others(view).forEach((other) => other.pane.token(i)),
    });
    view.strip = new Strip(view);
    view.strip.element.setAttribute("aria-label", `${app.quantity.label} of every token`);
    if (app.shownMethods().length > 1) view.element.append(make("h3", "method", title));
    view.element.append(...budgetBar([completion], method));
    const blame = blameOf(completion, method);
    if (blame) {
      const [before, at, after] = blame.map((share) => `${number(100 * share, 1)}%`);
      const even = (completion.error.span[1] - completion.error.span[0]) / completion.length;
      const text = `negative update: ${before} before, ${at} at, ${after} after the first error`;
      view.element.append(make("p", "blame", `${text} (chance at it: ${number(100 * even, 1)}%)`));
    }
    view.element.append(view.pane.element, view.strip.element);
    return view;
  }

  classOf(view, i) {
    let classes = view.scale.classOf(view.column[i]);
    if (isReversed(this.completion, view.method, i)) classes += " reversed";
    else if (isMismatch(this.completion, i)) classes += " mismatch";
    if (isError(this.completion, i)) classes += " first-error";
    if (this.fork && i === this.fork) classes += " fork";
    if (view.isDim(i)) classes += " dim";
    if (this.found?.[i]) classes += " found";
    return classes;
  }

  // Views of one completion have the same text: they unfold, scroll and point together.
  others(view) {
    return this.views.filter((other) => other !== view);
  }

  // A pane that is not as high stops earlier; where others brought it, it takes nobody along.
  scrolled(view) {
    view.strip.request();
    const top = view.pane.element.scrollTop;
    if (top === view.brought) return;
    view.brought = null;
    for (const other of this.others(view)) {
      const { element } = other.pane;
      if (element.scrollTop === top) continue;
      element.scrollTop = top;
      other.brought = element.scrollTop;
    }
  }

  activated(view, i) {
    for (const other of this.others(view)) {
      other.pane.mark(i);
      other.strip.request();
    }
    view.strip.request();
    this.app.select(this, view, i);
  }

  deselect() {
    for (const view of this.views) {
      view.pane.mark(-1);
      view.strip.request();
    }
  }

  repaint() {
    for (const view of this.views) {
      view.column = this.app.quantity.of(this.completion, view.method);
      view.scale = this.app.scaleOf(view.method);
      view.pane.repaint();
      view.strip.request();
    }
  }

  close() {
    for (const view of this.views) {
      view.pane.close();
      view.strip.close();
    }
  }
}
