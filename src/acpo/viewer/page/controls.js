// The page's controls and keys; each key has a control that does the same.

const KEYS = [
  ["← → ↑ ↓", "move between tokens, in a completion"],
  ["Home End PgUp PgDn", "first, last, a page up or down"],
  ["Tab", "next completion or control"],
  ["/", "search; Enter and Shift+Enter go from hit to hit"],
  ["n p", "next and previous hit of the search or the token filter"],
  ["o", "to the table of all prompts; Enter opens one"],
  ["j k", "next and previous prompt"],
  ["[ ]", "earlier and later training step"],
  ["1 … 7", "colour by the first, second, … quantity"],
  ["m", "next method"],
  ["b", "methods side by side"],
  ["s", "completions: all, A > 0, A ≤ 0"],
  ["f", "tokens: all, mismatched, reversed"],
  ["v", "values under the tokens"],
  ["c", "colour scale: per method and sign, per method, one for all, logarithmic"],
  ["t", "theme: as the system, light, dark"],
  ["?", "these keys"],
];

function describePage({ page }) {
  $("model").textContent = page.model;
  const facts = [];
  if (page.method) facts.push(`method ${page.method}`);
  if (page.temperature) facts.push(`T = ${page.temperature}`);
  if (page.groups.length < page.prompts) {
    const over = page.steps > 1 ? ", spread over the steps" : "";
    facts.push(`${page.groups.length} of ${page.prompts} prompts${over}`);
  }
  $("made").textContent = facts.join(" · ");
  const options = page.groups.map(({ id, prompt, steps }, index) => {
    const name = prompt ? plainText(prompt, 48) : plainText(id, 48);
    const last = steps.length > 1 ? ` to ${steps.at(-1)}` : "";
    const when = page.steps > 1 ? `  step ${steps[0]}${last}` : "";
    return make("option", "", `${index + 1} / ${page.groups.length}${when}  ${name}`);
  });
  if (!page.errors) $("only").querySelector("[value=error]").remove();
  for (const { key, label, hint } of SCALES) {
    const option = make("option", "", label);
    option.value = key;
    option.title = hint;
    $("scale").append(option);
  }
  fill($("prompts"), ...options);
  for (const id of ["previous", "next"]) $(id).disabled = page.groups.length < 2;
  const list = KEYS.flatMap(([keys, meaning]) => {
    const term = make("dt");
    term.append(...keys.split(" ").flatMap((key) => [make("kbd", "", key), " "]));
    return [term, make("dd", "", meaning)];
  });
  fill($("keys"), ...list);
}

function bindControls(app) {
  const on = (id, type, action) => $(id).addEventListener(type, action);
  on("previous", "click", () => app.openPrompt(app.index - 1));
  on("next", "click", () => app.openPrompt(app.index + 1));
  on("prompts", "change", (event) => app.openPrompt(event.target.selectedIndex));
  on("step", "input", (event) => {
    app.state.step = app.stepsOfGroup[Number(event.target.value)];
    app.show();
  });
  on("quantity", "change", () => {
    const paired = app.shownMethods().length;
    app.chooseQuantity();
    if (app.shownMethods().length === paired) app.recolour();
    else app.show();
  });
  on("scale", "change", (event) => {
    app.state.scale = SCALES[event.target.selectedIndex];
    app.recolour();
  });
  on("sign", "change", (event) => {
    app.state.sign = event.target.value;
    app.show();
  });
  on("only", "change", (event) => {
    app.state.only = event.target.value;
    app.search();
    app.repaint();
  });
  on("values", "change", (event) => {
    app.state.values = event.target.checked;
    document.body.classList.toggle("values", app.state.values);
    app.repaint();
  });
  on("query", "input", () => {
    app.search();
    app.repaint();
  });
  on("query", "keydown", (event) => {
    if (event.key === "Escape") event.target.blur();
    if (event.key !== "Enter") return;
    event.preventDefault();
    app.nextHit(event.shiftKey ? -1 : 1);
    event.target.focus({ preventScroll: true });
  });
  on("help-open", "click", () => $("help").showModal());
  on("help-close", "click", () => $("help").close());
  app.nextTheme = themeButton($("theme"), () => {
    for (const card of app.cards) for (const { strip } of card.views) strip.request();
  });
  offerMethods(app);
  document.addEventListener("keydown", (event) => pressKey(app, event));
  window.addEventListener("beforeprint", () => {
    for (const pane of app.panes()) pane.paintAll();
  });
}

function offerMethods(app) {
  const { methods } = app.page;
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
    radio.checked = value === app.state.method;
    radio.addEventListener("change", () => chooseMethod(app, value));
    label.append(radio, ` ${title}`);
    $("methods").append(label);
  }
}

function chooseMethod(app, value) {
  app.state.both = value === "";
  if (value) app.state.method = value;
  app.overview?.show();
  for (const radio of $("methods").querySelectorAll("input")) radio.checked = radio.value === value;
  app.show();
}

function cycle(id) {
  const select = $(id);
  select.selectedIndex = (select.selectedIndex + 1) % select.options.length;
  select.dispatchEvent(new Event("change"));
}

function moveStep(by) {
  const slider = $("step");
  slider.value = Number(slider.value) + by;
  slider.dispatchEvent(new Event("input"));
}

function pressKey(app, event) {
  if (event.ctrlKey || event.metaKey || event.altKey || $("help").open) return;
  if (event.target.matches("input[type=search], select")) return;
  if (event.key === "o" && !$("overview").hidden) {
    ($("overview-rows").querySelector("[aria-current=true]") ?? $("overview-filter")).focus();
    event.preventDefault();
    return;
  }
  const names = app.page.methods.map(({ name }) => name);
  const actions = {
    "/": () => $("query").focus(),
    n: () => app.nextHit(1),
    p: () => app.nextHit(-1),
    j: () => app.openPrompt(app.index + 1),
    k: () => app.openPrompt(app.index - 1),
    "[": () => moveStep(-1),
    "]": () => moveStep(1),
    m: () =>
      names.length &&
      chooseMethod(app, names[(names.indexOf(app.state.method) + 1) % names.length]),
    b: () => names.length > 1 && chooseMethod(app, app.state.both ? app.state.method : ""),
    s: () => cycle("sign"),
    f: () => cycle("only"),
    v: () => $("values").click(),
    c: () => cycle("scale"),
    t: () => app.nextTheme(),
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

const app = new CreditPage();
describePage(app);
bindControls(app);
app.openPlace();
app.overview = new Overview(app);
