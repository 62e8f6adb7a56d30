// The page's controls and keys; each key has a control that does the same.

const KEYS = [
  ["← → ↑ ↓", "move between tokens, in a completion"],
  ["Home End PgUp PgDn", "first, last, a page up or down"],
  ["Tab", "next completion or control"],
  ["/", "search; Enter and Shift+Enter go from hit to hit"],
  ["n p", "next and previous hit of the search or the token filter"],
  ["j k", "next and previous prompt"],
  ["[ ]", "earlier and later training step"],
  ["1 … 7", "colour by the first, second, … quantity"],
  ["m", "next method"],
  ["b", "methods side by side"],
  ["s", "completions: all, A > 0, A ≤ 0"],
  ["f", "tokens: all, mismatched, reversed"],
  ["v", "values under the tokens"],
  ["t", "theme: as the system, light, dark"],
  ["?", "these keys"],
];

class Controls extends CreditPage {
  header() {
    const { page } = this;
    $("model").textContent = page.model;
    const facts = [];
    if (page.method) facts.push(`trained with ${page.method}`);
    if (page.temperature) facts.push(`T = ${page.temperature}`);
    if (page.groups.length < page.prompts) {
      facts.push(`first ${page.groups.length} of ${page.prompts} prompts`);
    }
    $("made").textContent = facts.join(" · ");
    const options = page.groups.map(({ id, prompt }, index) => {
      const name = prompt ? plainText(prompt, 48) : id;
      return make("option", "", `${index + 1} / ${page.groups.length}  ${name}`);
    });
    fill($("prompts"), ...options);
    for (const id of ["previous", "next"]) $(id).disabled = page.groups.length < 2;
    const list = KEYS.flatMap(([keys, meaning]) => {
      const term = make("dt");
      term.append(...keys.split(" ").flatMap((key) => [make("kbd", "", key), " "]));
      return [term, make("dd", "", meaning)];
    });
    fill($("keys"), ...list);
  }

  controls() {
    const on = (id, type, action) => $(id).addEventListener(type, action);
    on("previous", "click", () => this.openPrompt(this.index - 1));
    on("next", "click", () => this.openPrompt(this.index + 1));
    on("prompts", "change", (event) => this.openPrompt(event.target.selectedIndex));
    on("step", "input", (event) => {
      this.state.step = this.stepsOfGroup[Number(event.target.value)];
      this.show();
    });
    on("quantity", "change", () => {
      const paired = this.shownMethods().length;
      this.chooseQuantity();
      if (this.shownMethods().length === paired) this.repaint();
      else this.show();
    });
    on("sign", "change", (event) => {
      this.state.sign = event.target.value;
      this.show();
    });
    on("only", "change", (event) => {
      this.state.only = event.target.value;
      this.search();
      this.repaint();
    });
    on("values", "change", (event) => {
      this.state.values = event.target.checked;
      document.body.classList.toggle("values", this.state.values);
      this.repaint();
    });
    on("query", "input", () => this.search());
    on("query", "keydown", (event) => {
      if (event.key === "Escape") event.target.blur();
      if (event.key !== "Enter") return;
      event.preventDefault();
      this.nextHit(event.shiftKey ? -1 : 1);
      event.target.focus({ preventScroll: true });
    });
    on("help-open", "click", () => $("help").showModal());
    on("help-close", "click", () => $("help").close());
    this.nextTheme = themeButton($("theme"), () => {
      for (const card of this.cards) for (const { strip } of card.views) strip.request();
    });
    this.methodChoice();
    document.addEventListener("keydown", (event) => this.key(event));
    window.addEventListener("beforeprint", () => {
      for (const pane of this.panes()) pane.paintAll();
    });
  }

  methodChoice() {
    const { methods } = this.page;
    if (!methods.length) return;
    $("methods").hidden = false;
    const choices = methods.map(({ name, title }) => [name, title]);
    if (methods.length > 1) choices.push(["", "side by side"]);
    for (const [value, title] of choices) {
      const label = make("label");
      const radio = make("input");
      radio.type = "radio";
      radio.name = "method";
      radio.value = value;
      radio.checked = value === this.state.method;
      radio.addEventListener("change", () => this.chooseMethod(value));
      label.append(radio, ` ${title}`);
      $("methods").append(label);
    }
  }

  chooseMethod(value) {
    this.state.both = value === "";
    if (value) this.state.method = value;
    for (const radio of $("methods").querySelectorAll("input")) radio.checked = radio.value === value;
    this.show();
  }

  cycle(id) {
    const select = $(id);
    select.selectedIndex = (select.selectedIndex + 1) % select.options.length;
    select.dispatchEvent(new Event("change"));
  }

  moveStep(by) {
    const slider = $("step");
    slider.value = Number(slider.value) + by;
    slider.dispatchEvent(new Event("input"));
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || $("help").open) return;
    if (event.target.matches("input[type=search], select")) return;
    const names = this.page.methods.map(({ name }) => name);
    const actions = {
      "/": () => $("query").focus(),
      n: () => this.nextHit(1),
      p: () => this.nextHit(-1),
      j: () => this.openPrompt(this.index + 1),
      k: () => this.openPrompt(this.index - 1),
      "[": () => this.moveStep(-1),
      "]": () => this.moveStep(1),
      m: () =>
        names.length &&
        this.chooseMethod(names[(names.indexOf(this.state.method) + 1) % names.length]),
      b: () => names.length > 1 && this.chooseMethod(this.state.both ? this.state.method : ""),
      s: () => this.cycle("sign"),
      f: () => this.cycle("only"),
      v: () => $("values").click(),
      t: () => this.nextTheme(),
      "?": () => $("help").showModal(),
    };
    const digit = Number(event.key);
    if (digit >= 1 && digit <= $("quantity").options.length) {
      $("quantity").selectedIndex = digit - 1;
      $("quantity").dispatchEvent(new Event("change"));
    } else if (actions[event.key]) actions[event.key]();
    else return;
    event.preventDefault();
  }
}

new Controls();
