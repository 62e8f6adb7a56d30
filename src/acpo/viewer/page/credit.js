// The credit page: what is on show, and which token is selected.

class CreditPage {
  constructor() {
    this.page = readBlock("page");
    this.state = {
      method: this.page.methods.at(-1)?.name ?? "",
      both: false,
      sign: "all",
      only: "all",
      values: false,
      step: null,
      scale: SCALES[0],
    };
    this.cards = [];
    this.hits = [];
    this.hit = -1;
  }

  // What is on show ---------------------------------------------------------------------------

  shownMethods() {
    if (!this.page.methods.length) return [""];
    if (!this.state.both || !this.quantity.perMethod) return [this.state.method];
    return this.page.methods.map(({ name }) => name);
  }

  titleOf(method) {
    return this.page.methods.find(({ name }) => name === method)?.title ?? "";
  }

  isDim(completion, method, i) {
    if (this.state.only === "mismatch") return !isMismatch(completion, i);
    if (this.state.only === "error") return !isError(completion, i);
    if (this.state.only === "reversed") return !isReversed(completion, method, i);
    return false;
  }

  // Newer rollouts take the place of those on show.
  replace(blocks) {
    for (const [id, block] of Object.entries(blocks)) fetched.set(id, block);
    const before = this.page.groups[this.index]?.id;
    this.page = { ...blocks.page, live: this.page.live };
    const method = this.page.methods.find(({ name }) => name === this.state.method);
    this.state.method = (method ?? this.page.methods.at(-1))?.name ?? "";
    this.overview = null;
    describePage(this);
    if (!this.page.groups.length) return;
    const same = this.page.groups.findIndex(({ id }) => id === before);
    this.openPrompt(Math.max(same, 0), null);
    this.overview = new Overview(this);
  }

  openPrompt(index, step = this.state.step) {
    const { groups } = this.page;
    this.state.step = step;
    this.index = (index + groups.length) % groups.length;
    $("prompts").selectedIndex = this.index;
    this.group = openGroup(`group-${this.index}`);
    const steps = [...new Set(this.group.completions.map(({ step }) => step))].sort((a, b) => a - b);
    this.stepsOfGroup = steps;
    if (!steps.includes(this.state.step)) this.state.step = steps.at(-1);
    $("steps").hidden = steps.length < 2;
    $("step").max = steps.length - 1;
    showPrompt($("prompt"), this.group);
    this.offerQuantities();
    this.show();
  }

  offerQuantities() {
    const [sample] = this.group.completions;
    const offered = QUANTITIES.filter((q) => q.of(sample, this.state.method));
    if (!offered.length) offered.push(NOTHING);
    const wanted = this.quantity?.key;
    fill($("quantity"), ...offered.map(({ key, label, hint }) => option(label, key, hint)));
    if (offered.some(({ key }) => key === wanted)) $("quantity").value = wanted;
    this.offered = offered;
    this.chooseQuantity();
  }

  chooseQuantity() {
    this.quantity = this.offered.find(({ key }) => key === $("quantity").value);
    $("quantity").title = this.quantity.hint ?? "";
  }

  // Scales span all completions of this step: their colours compare. Methods may have their own.
  rescale() {
    const methods = this.page.methods.map(({ name }) => name);
    const completions = this.group.completions.filter(({ step }) => step === this.state.step);
    const { quantity, state } = this;
    const several = methods.length && quantity.perMethod;
    const scaleOf = (names) =>
      new Scale(
        quantity,
        completions.flatMap((c) => names.map((name) => quantity.of(c, name) ?? [])),
        state.scale,
      );
    const own = several ? methods : [state.method];
    const one = state.scale.shared || !several ? scaleOf(own) : null;
    this.scales = new Map(own.map((method) => [method, one ?? scaleOf([method])]));
    const legends = one ? [["", one]] : this.shownMethods().map((m) => [m, this.scaleOf(m)]);
    fill($("legend"), make("span", "muted", quantity.label));
    for (const [method, scale] of legends) {
      if (legends.length > 1) $("legend").append(make("b", "", this.titleOf(method)));
      $("legend").append(...scale.legend());
    }
    $("legend").append(make("span", "mismatch", "not the mode"));
    if (this.page.methods.length) $("legend").append(make("span", "reversed", "reversed"));
  }

  scaleOf(method) {
    return this.scales.get(method) ?? [...this.scales.values()][0];
  }

  completions() {
    const { step, sign } = this.state;
    return this.group.completions.filter((completion) => {
      if (completion.step !== step) return false;
      const positive = (completion.advantage ?? 0) > 0;
      return sign === "all" || (sign === "positive") === positive;
    });
  }

  // Make the cards anew; the selected token stays selected where its completion is on show.
  show() {
    const before = this.selected;
    for (const card of this.cards) card.close();
    this.rescale();
    this.selected = null;
    const alike = distinct(this.completions());
    const related = relate(alike.map(([completion]) => completion));
    this.cards = alike.map((same, k) => new Card(this, same, related[k]));
    const main = fill($("completions"), ...this.cards.map(({ element }) => element));
    if (!this.cards.length) main.append(make("p", "empty", "No completion has such an advantage."));
    main.classList.toggle("long", this.cards.some(({ completion }) => completion.length > 400));
    main.classList.toggle("paired", this.shownMethods().length > 1);
    const { step } = this.state;
    $("step").value = this.stepsOfGroup.indexOf(step);
    $("step-value").textContent = step;
    this.summarise();
    const bars = this.shownMethods().map((method) => budgetBar(this.completions(), method));
    fill($("budgets"), ...bars.flat());
    this.search();
    this.restore(before);
    this.overview?.mark();
  }

  restore(before) {
    const same = this.cards.find(({ completion }) => completion.sample === before?.sample);
    const card = same ?? this.cards.find(({ completion }) => completion.length);
    if (!card?.completion.length) {
      fill($("inspector"), make("p", "muted", "No token."));
      return;
    }
    const token = same ? before.token : firstMismatch(card.completion);
    const kept = Math.min(token, card.completion.length - 1);
    for (const view of card.views) view.pane.mark(kept);
    this.select(card, card.views[0], kept);
  }

  recolour() {
    this.rescale();
    this.repaint();
  }

  repaint() {
    for (const card of this.cards) card.repaint();
  }

  summarise() {
    const all = this.completions();
    const total = (of) => all.reduce((sum, completion) => sum + of(completion), 0);
    const tokens = total(({ length }) => length);
    const where = (test) =>
      total((c) => {
        let n = 0;
        for (let i = 0; i < c.length; i++) if (test(c, i)) n += 1;
        return n;
      });
    const judged = all.filter(({ reward }) => reward !== null);
    const parts = [`step ${this.state.step}`, count(all.length, "completion")];
    if (judged.length) {
      const named = all.some(({ verdict }) => verdict !== null);
      parts.push(`${judged.filter(isRight).length} ${named ? "correct" : "with reward above 0"}`);
      parts.push(`mean reward ${number(total(({ reward }) => reward ?? 0) / judged.length, 2)}`);
    }
    parts.push(count(tokens, "token"));
    if (tokens && all[0].columns.is_mode) {
      parts.push(`${number((100 * where(isMismatch)) / tokens, 1)}% not the mode`);
    }
    for (const { name, title } of this.page.methods) {
      const unknown = where((c, i) => isUnknown(c, name, i));
      const reversed = unknown ? "–" : where((c, i) => isReversed(c, name, i));
      const why = unknown ? ` (${count(unknown, "update")} not known)` : "";
      parts.push(`${reversed} reversed by ${title}${why}`);
    }
    const broken = all.filter(isBroken).length;
    if (broken) parts.push(`${count(broken, "completion")} with numbers that are not finite`);
    fill($("summary"), parts.join(" · "));
    const silent = this.whySilent();
    if (silent) $("summary").prepend(make("b", "silent", silent), " · ");
  }

  // Why a whole group moves nothing, where it does not.
  whySilent() {
    const group = this.group.completions.filter(({ step }) => step === this.state.step);
    if (group.some(({ advantage }) => advantage)) return "";
    const rewards = new Set(group.map(({ reward }) => reward));
    if (rewards.has(null)) return rewards.size > 1 ? "" : "No verdict, so no advantage";
    return rewards.size > 1 ? "" : "All rewards are equal: no advantage, no update";
  }

  // Tokens ------------------------------------------------------------------------------------

  // The pointer is on a token, or (null) on none: then the selected one is shown again.
  point(card, i) {
    const target = i === null ? this.selected : { card, token: i };
    if (target) inspect($("inspector"), this.page, target.card.completion, target.token);
  }

  select(card, view, i) {
    if (this.selected && this.selected.card !== card) this.selected.card.deselect();
    this.selected = { card, view, token: i, sample: card.completion.sample };
    this.keepPlace();
    inspect($("inspector"), this.page, card.completion, i);
    announce($("announcement"), card.completion, i, view.column[i], this.quantity);
  }

  // The place in the address, so that a token can be linked.
  keepPlace() {
    const { step, method } = this.state;
    const { token, sample } = this.selected;
    const { id } = this.page.groups[this.index];
    const place = { prompt: id, step, sample, token, method, colour: this.quantity.key };
    try {
      history.replaceState(null, "", `#${new URLSearchParams(place)}`);
    } catch {
      // Some browsers refuse for local files; the page works without.
    }
  }

  // Open what the address names, as far as the page has it; the first prompt otherwise.
  openPlace() {
    const place = new URLSearchParams(location.hash.slice(1));
    const whole = (name) => (/^\d{1,9}$/.test(place.get(name) ?? "") ? Number(place.get(name)) : -1);
    const index = this.page.groups.findIndex(({ id }) => id === place.get("prompt"));
    const method = this.page.methods.find(({ name }) => name === place.get("method"));
    if (method) this.state.method = method.name;
    this.openPrompt(Math.max(index, 0), index < 0 ? null : whole("step"));
    if (index < 0) return;
    const colour = [...$("quantity").options].findIndex(({ value }) => value === place.get("colour"));
    if (colour >= 0) $("quantity").selectedIndex = colour;
    this.chooseQuantity();
    this.recolour();
    const card = this.cards.find(({ samples }) => samples.includes(whole("sample")));
    const token = whole("token");
    if (card && token >= 0 && token < card.completion.length) card.views[0].pane.activate(token);
  }

  // Find the hits of the search, or else of the token filter; "next" and "previous" go through them.
  search() {
    const query = $("query").value;
    const pattern = query && new RegExp(query.replace(/[\\^$.*+?()[\]{}|/-]/g, "\\$&"), "gi");
    this.hits = [];
    this.hit = -1;
    for (const card of this.cards) {
      const { completion } = card;
      card.found = null;
      if (pattern) {
        card.found = new Uint8Array(completion.length);
        const { text, owner } = completion.search;
        for (const match of text.matchAll(pattern)) {
          const end = match.index + match[0].length - 1;
          for (let i = owner[match.index]; i <= owner[end]; i++) card.found[i] = 1;
          this.hits.push({ card, token: owner[match.index] });
        }
      } else if (this.state.only !== "all") {
        for (let i = 0; i < completion.length; i++) {
          if (!this.isDim(completion, this.state.method, i)) this.hits.push({ card, token: i });
        }
      }
    }
    this.showHits();
  }

  showHits() {
    const active = $("query").value || this.state.only !== "all";
    const at = this.hit >= 0 ? `${this.hit + 1} / ` : "";
    $("hits").textContent = active ? at + count(this.hits.length, "hit") : "";
  }

  nextHit(direction) {
    if (!this.hits.length) return;
    const first = direction > 0 ? -1 : 0;
    const from = this.hit < 0 ? first : this.hit;
    this.hit = (from + direction + this.hits.length) % this.hits.length;
    const { card, token } = this.hits[this.hit];
    const { pane } = card.views[0];
    pane.activate(token); // before focus, which would open a fold to activate the first
    pane.element.focus({ preventScroll: true });
    this.showHits();
  }
}
