// The review of first errors: one item after another, by keyboard or by pointer.

function tokensOf([first, end]) {
  return end - first === 1 ? `token ${first + 1}` : `tokens ${first + 1} to ${end}`;
}

class ReviewPage {
  constructor() {
    this.page = readBlock("page");
    this.decisions = new Decisions(this.page);
    this.panes = [];
    this.groups = new Map();
    this.header();
    this.controls();
    this.open(Math.max(this.undecidedFrom(0), 0));
  }

  get item() {
    return this.page.items[this.index];
  }

  // Header -----------------------------------------------------------------------------------

  header() {
    $("model").textContent = this.page.model;
    $("reviewer").value = this.decisions.reviewer;
    fill($("items"), ...this.page.items.map((_, index) => make("option", "", this.title(index))));
    this.progress();
    const { stored, restored } = this.decisions;
    const again = restored ? `${count(restored, "decision")} of yours kept in this browser` : "";
    $("kept").textContent = stored
      ? again
      : "This browser keeps nothing for local files: export before you close the page.";
  }

  title(index) {
    const { prompt, wrong, right } = this.page.items[index];
    const what = right === null ? `error of wrong ${wrong}` : `wrong ${wrong}, right ${right}`;
    const open = this.isVoid(index) ? "–" : "·";
    const mark = { accept: "✓", move: "→", reject: "✗" }[this.made(index)?.decision] ?? open;
    return `${mark} ${index + 1} / ${this.page.items.length}  ${what}  ${plainText(prompt, 32)}`;
  }

  progress() {
    const made = [...this.decisions.byItem.keys()].filter((index) => this.made(index)).length;
    const open = this.page.items.filter((_, index) => this.isOpen(index)).length;
    $("progress").textContent = `${made} decided here, ${open} undecided`;
    if (this.index === undefined) return;
    // What corresponds to an error is decided, or not, with the error.
    this.page.items.forEach(({ errorAt }, index) => {
      if (errorAt === this.item.errorAt) $("items").options[index].textContent = this.title(index);
    });
  }

  // The decision on an item that counts. One on a corresponding place counts beside the error it
  // was made for, and beside no other.
  made(index) {
    const item = this.page.items[index];
    const made = this.decisions.get(index) ?? item.earlier;
    if (!made || item.right === null) return made;
    if (this.isVoid(index)) return null;
    const { error } = made;
    return error && String(error) !== String(this.errorPlace(item)) ? null : made;
  }

  // Nothing corresponds to an error that was rejected, or that nobody located.
  isVoid(index) {
    const item = this.page.items[index];
    return item.right !== null && !this.errorPlace(item);
  }

  isOpen(index) {
    return !this.made(index) && !this.isVoid(index);
  }

  // Whether a proposal can be accepted: what corresponds to another error cannot.
  fits({ annotator, span }, item = this.item) {
    if (!span || item.right === null) return Boolean(span);
    const own = this.page.items[item.errorAt].proposals.find((one) => one.annotator === annotator);
    return String(own?.span) === String(this.errorPlace(item));
  }

  undecidedFrom(start) {
    const { items } = this.page;
    for (let step = 0; step < items.length; step++) {
      const index = (start + step) % items.length;
      if (this.isOpen(index)) return index;
    }
    return -1;
  }

  // Item -------------------------------------------------------------------------------------

  open(index) {
    if (!this.page.items[index]) return;
    this.index = index;
    const { item } = this;
    $("items").selectedIndex = index;
    const group = this.group(item.group);
    showPrompt($("prompt"), group);
    $("question").textContent = this.question();
    this.chosen = item.proposals.findIndex((one) => this.fits(one));
    $("note").value = this.decisions.get(index)?.note ?? "";
    this.sides(group);
    this.proposals();
    this.state();
    const place = this.place();
    if (place) this.asked.activate(place[0]);
    this.asked.element.focus({ preventScroll: true });
  }

  question() {
    if (this.item.right === null) return "Where is the first error?";
    if (this.isVoid(this.index)) {
      const why = this.made(this.item.errorAt) ? "was rejected" : "has no place yet";
      return `The error ${why}: nothing corresponds to it.`;
    }
    return "What corresponds to the error in the right completion?";
  }

  group(number) {
    if (!this.groups.has(number)) this.groups.set(number, openGroup(`group-${number}`));
    return this.groups.get(number);
  }

  sides(group) {
    for (const pane of this.panes) pane.close();
    const { item } = this;
    const wrong = this.side(group.completions[item.wrongAt], `Wrong completion ${item.wrong}`, 0);
    const sides = [wrong];
    if (item.right !== null) {
      const title = `Right completion ${item.right}`;
      sides.push(this.side(group.completions[item.rightAt], title, 1));
    }
    this.panes = sides.map(({ pane }) => pane);
    this.asked = this.panes.at(-1);
    sides.at(-1).element.classList.add("asked");
    fill($("sides"), ...sides.map(({ element }) => element));
    const error = item.right === null ? null : this.errorPlace();
    if (error) this.panes[0].activate(error[0]);
  }

  side(completion, title, number) {
    const element = make("section", "card");
    const asked = this.item.right === null ? 0 : 1;
    const classOf = number === asked ? (i) => this.askedClass(i) : (i) => this.errorClass(i);
    const pane = new TokenPane(completion, {
      label: title,
      classOf,
      onActive: (i) => {
        $("announcement").textContent = `token ${i + 1}: ${plainText(completion.text(i))}`;
      },
    });
    element.append(make("h2", "", title), pane.element);
    return { element, pane };
  }

  askedClass(i) {
    const inside = ([first, end]) => first <= i && i < end;
    const place = this.place();
    const classes = [];
    if (place && inside(place)) classes.push("chosen");
    if (this.item.proposals.some(({ span }) => span && inside(span))) classes.push("proposed");
    return classes.join(" ");
  }

  errorClass(i) {
    const place = this.errorPlace();
    return place && place[0] <= i && i < place[1] ? "error" : "";
  }

  // The place of this item that counts now: decided, or chosen among the proposals.
  place() {
    const made = this.made(this.index);
    if (made) return made.span;
    return this.item.proposals[this.chosen]?.span ?? null;
  }

  errorPlace({ errorAt } = this.item) {
    const made = this.made(errorAt);
    if (made) return made.span;
    return this.page.items[errorAt].proposals.find((one) => one.span)?.span ?? null;
  }

  // Proposals and decision -------------------------------------------------------------------

  proposals() {
    const rows = this.item.proposals.map((proposal, number) => {
      const fits = this.fits(proposal);
      const where = proposal.span ? tokensOf(proposal.span) : proposal.status;
      const other = proposal.span && !fits ? ", of its own error: place it by hand" : "";
      const text = `${number + 1}. ${proposal.annotator}: ${where}${other}`;
      const label = choice("proposal", text, number === this.chosen, () => this.choose(number));
      label.firstChild.disabled = !fits;
      const why = proposal.rationale || proposal.detail;
      if (why) showText(label.appendChild(make("bdi", "why")), why, 4000);
      return label;
    });
    fill($("proposals"), make("legend", "", "Proposals"), ...rows);
    const isVoid = this.isVoid(this.index);
    $("accept").disabled = this.chosen < 0 || isVoid;
    for (const id of ["begin", "finish", "reject"]) $(id).disabled = isVoid;
  }

  choose(number) {
    const proposal = this.item.proposals[number];
    if (!proposal || !this.fits(proposal)) return;
    this.chosen = number;
    this.proposals();
    if (!this.decisions.get(this.index)) this.asked.activate(proposal.span[0]);
    this.asked.repaint();
    this.state();
  }

  state() {
    const made = this.decisions.get(this.index);
    const { earlier } = this.item;
    const counts = this.made(this.index);
    const said = (one) =>
      one.decision === "reject"
        ? "rejected"
        : `${one.decision === "accept" ? `accepted ${one.annotator}` : "moved"}: ${tokensOf(one.span)}`;
    if (this.isVoid(this.index)) $("state").textContent = "Nothing to decide";
    else if (!counts && (made ?? earlier)) {
      $("state").textContent = "Decided beside another error: decide again";
    } else if (made) $("state").textContent = `You ${said(made)}`;
    else if (earlier) $("state").textContent = `${earlier.reviewer} ${said(earlier)}`;
    else $("state").textContent = "Not decided";
    $("undo").disabled = !made;
  }

  decide(decision, span, annotator) {
    if (this.isVoid(this.index)) return;
    const note = $("note").value;
    const error = this.item.right === null ? null : this.errorPlace();
    this.decisions.set(this.index, { decision, span, annotator, error, note });
    this.changed();
  }

  changed() {
    this.state();
    this.progress();
    this.asked.repaint();
    $("announcement").textContent = $("state").textContent;
  }

  accept() {
    const proposal = this.item.proposals[this.chosen];
    if (!proposal?.span) return;
    this.decide("accept", proposal.span, proposal.annotator);
    this.goOn();
  }

  reject() {
    this.decide("reject", null, null);
    this.goOn();
  }

  begin() {
    const at = this.asked.active;
    if (at < 0) return;
    this.decide("move", [at, at + 1], null);
  }

  finish() {
    const at = this.asked.active;
    const [first] = this.place() ?? [at];
    if (at < 0 || at < first) return;
    this.decide("move", [first, at + 1], null);
  }

  undo() {
    this.decisions.set(this.index, null);
    this.changed();
  }

  goOn() {
    const next = this.undecidedFrom(this.index + 1);
    if (next >= 0) this.open(next);
  }

  // Export -----------------------------------------------------------------------------------

  export() {
    if (!this.decisions.reviewer.trim()) {
      $("kept").textContent = "Say who you are before you export.";
      $("reviewer").focus();
      return;
    }
    const value = this.decisions.exported((index) => this.made(index));
    const text = JSON.stringify(value, null, 1);
    $("exported-text").value = text;
    $("exported-what").textContent = `${count(value.decisions.length, "decision")} by ${value.reviewer}`;
    const link = make("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    link.download = "review.json";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    $("exported").showModal();
    $("exported-text").select();
  }

  // Controls ---------------------------------------------------------------------------------

  controls() {
    const nextOpen = () => this.open(this.undecidedFrom(this.index + 1));
    on("previous", "click", () => this.open(this.index - 1));
    on("next", "click", () => this.open(this.index + 1));
    on("next-open", "click", nextOpen);
    on("items", "change", (event) => this.open(event.target.selectedIndex));
    on("reviewer", "input", (event) => this.decisions.name(event.target.value));
    on("note", "input", (event) => this.decisions.note(this.index, event.target.value));
    for (const name of ["accept", "reject", "begin", "finish", "undo", "export"]) {
      on(name, "click", () => this[name]());
    }
    for (const id of ["note", "reviewer"]) {
      on(id, "keydown", ({ key }) => key === "Escape" && this.asked.element.focus());
    }
    on("exported-close", "click", () => $("exported").close());
    bindKeys([
      ["a", "accept the chosen proposal, and go on", () => this.accept()],
      ["1 … 9", "choose a proposal", (key) => this.choose(Number(key) - 1)],
      ["← → ↑ ↓ Home End", "move between tokens"],
      ["m", "it begins at the active token", () => this.begin()],
      ["e", "it ends at the active token", () => this.finish()],
      ["r", "reject: there is no such place, and go on", () => this.reject()],
      ["u", "take the decision back", () => this.undo()],
      ["j k", "next and previous item", (key) => this.open(this.index + (key === "j" ? 1 : -1))],
      ["n", "next undecided item", nextOpen],
      ["w", "to the completion the question is about", () => this.asked.element.focus()],
      ["i", "to the note; Escape leaves it", () => $("note").focus()],
      ["s", "export", () => this.export()],
    ]);
  }
}

new ReviewPage();
