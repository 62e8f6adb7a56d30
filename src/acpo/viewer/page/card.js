// One completion: what became of it, and its tokens once per method on show.

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
  return length > 0 && ["logp", "entropy"].some((name) => columns[name]?.some(Number.isNaN));
}

function outcomeOf({ verdict, reward }) {
  if (verdict !== null) return [...(VERDICTS.get(verdict) ?? ["?", "muted"]), plainText(verdict, 24)];
  if (reward === null) return ["?", "muted", "no verdict"];
  return reward > 0 ? ["✓", "good", "rewarded"] : ["✗", "bad", "not rewarded"];
}

class Card {
  constructor(app, completion) {
    this.app = app;
    this.completion = completion;
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
      make("span", "sample", `#${completion.sample}`),
      make("span", tone, `${sign} ${outcome}`),
      make("span", "number", `reward ${short(completion.reward)}`),
      make("span", "number", `A ${number(completion.advantage, 2, true)}`),
      make("span", "number muted", count(completion.length, "token")),
    );
    if (isBroken(completion)) head.append(make("span", "bad", "not finite"));
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
      label: `completion ${completion.sample}${title ? `, ${title}` : ""}: tokens`,
      classOf: (i) => this.classOf(view, i),
      labelOf: (i) => (app.state.values ? number(view.column[i], 2, view.scale.signed) : undefined),
      onPoint: (i) => app.point(this, i),
      onActive: (i) => this.activated(view, i),
      onScroll: () => this.scrolled(view),
    });
    view.strip = new Strip(view);
    view.strip.element.setAttribute("aria-label", `${app.quantity.label} of every token`);
    if (app.shownMethods().length > 1) view.element.append(make("h3", "method", title));
    view.element.append(view.pane.element, view.strip.element);
    return view;
  }

  classOf(view, i) {
    let classes = view.scale.classOf(view.column[i]);
    if (isReversed(this.completion, view.method, i)) classes += " reversed";
    else if (isMismatch(this.completion, i)) classes += " mismatch";
    if (view.isDim(i)) classes += " dim";
    if (this.found?.[i]) classes += " found";
    return classes;
  }

  // Views of one completion have the same text: they scroll, and point, together.
  scrolled(view) {
    view.strip.request();
    const top = view.pane.element.scrollTop;
    for (const other of this.views) {
      if (other !== view && other.pane.element.scrollTop !== top) other.pane.element.scrollTop = top;
    }
  }

  activated(view, i) {
    for (const other of this.views) {
      if (other !== view) other.pane.mark(i);
      other.strip.request();
    }
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
