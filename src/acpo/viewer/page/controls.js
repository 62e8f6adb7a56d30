// The page's controls and keys; each key has a control that does the same.

function describePage(app) {
  const { page } = app;
  $("model").textContent = page.model;
  const facts = [];
  if (page.method) facts.push(`method ${page.method}`);
  if (page.temperature) facts.push(`T = ${page.temperature}`);
  if (page.groups.length < page.prompts) {
    const over = page.steps > 1 ? ", spread over the steps" : "";
    facts.push(`${page.groups.length} of ${page.prompts} prompts${over}`);
  }
  $("made").textContent = facts.join(" · ");
  const prompts = page.groups.map(({ id, prompt, steps }, index) => {
    const last = steps.length > 1 ? ` to ${steps.at(-1)}` : "";
    const when = page.steps > 1 ? `  step ${steps[0]}${last}` : "";
    return make("option", "", `${index + 1} / ${page.groups.length}${when}  ${plainText(prompt || id, 48)}`);
  });
  fill($("prompts"), ...prompts);
  for (const id of ["previous", "next"]) $(id).disabled = page.groups.length < 2;
  $("only").querySelector("[value=error]").hidden = !page.errors;
  document.body.classList.toggle("no-rollouts", !page.groups.length);
  offerMethods(app);
}

function offerMethods(app) {
  const { methods } = app.page;
  const choices = methods.map(({ name, title }) => [name, title]);
  if (methods.length > 1) choices.push(["", "side by side"]);
  const shown = app.state.both ? "" : app.state.method;
  const radios = choices.map(([value, title]) => {
    const label = choice("method", title, value === shown, () => chooseMethod(app, value));
    label.firstChild.value = value;
    return label;
  });
  $("methods").hidden = !methods.length;
  fill($("methods"), make("legend", "", "Method"), ...radios);
}

function chooseMethod(app, value) {
  app.state.both = value === "";
  if (value) app.state.method = value;
  app.overview?.show();
  for (const radio of $("methods").querySelectorAll("input")) radio.checked = radio.value === value;
  app.show();
}

function bindControls(app) {
  fill($("scale"), ...SCALES.map(({ key, label, hint }) => option(label, key, hint)));
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
  bindKeys(keysOf(app));
  const redraw = () => app.cards.forEach(({ views }) => views.forEach(({ strip }) => strip.request()));
  on("theme", "click", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  window.addEventListener("beforeprint", () => {
    for (const { views } of app.cards) for (const { pane } of views) pane.paintAll();
  });
}

function cycle(id) {
  const select = $(id);
  const offered = [...select.options].filter(({ hidden }) => !hidden);
  select.value = offered[(offered.indexOf(select.selectedOptions[0]) + 1) % offered.length].value;
  select.dispatchEvent(new Event("change"));
}

function moveStep(by) {
  $("step").value = Number($("step").value) + by;
  $("step").dispatchEvent(new Event("input"));
}

function chooseQuantity(digit) {
  if (digit > $("quantity").options.length) return;
  $("quantity").selectedIndex = digit - 1;
  $("quantity").dispatchEvent(new Event("change"));
}

function keysOf(app) {
  const names = () => app.page.methods.map(({ name }) => name);
  const nextMethod = (all) => all[(all.indexOf(app.state.method) + 1) % all.length];
  const toTable = () =>
    ($("overview-rows").querySelector("[aria-current=true]") ?? $("overview-filter")).focus();
  const keys = [
    ["← → ↑ ↓", "move between tokens, in a completion"],
    ["Home End PgUp PgDn", "first, last, a page up or down"],
    ["Tab", "next completion or control"],
    ["/", "search; Enter and Shift+Enter go from hit to hit", () => $("query").focus()],
    ["n p", "next and previous hit of the search or the token filter", (key) => app.nextHit(key === "n" ? 1 : -1)],
    ["o", "to the table of all prompts; Enter opens one", toTable],
    ["j k", "next and previous prompt", (key) => app.openPrompt(app.index + (key === "j" ? 1 : -1))],
    ["[ ]", "earlier and later training step", (key) => moveStep(key === "[" ? -1 : 1)],
    ["1 … 8", "colour by the first, second, … quantity", (key) => chooseQuantity(Number(key))],
    ["m", "next method", () => names().length && chooseMethod(app, nextMethod(names()))],
    ["b", "methods side by side", () => names().length > 1 && chooseMethod(app, app.state.both ? app.state.method : "")],
    ["s", "completions: all, A > 0, A ≤ 0", () => cycle("sign")],
    ["f", "tokens: all, mismatched, reversed, first errors", () => cycle("only")],
    ["v", "values under the tokens", () => $("values").click()],
    ["c", "colour scale: per method and sign, per method, one for all, logarithmic", () => cycle("scale")],
  ];
  const guarded = (action) => action && ((key) => app.page.groups.length && action(key));
  return keys.map(([names, meaning, action]) => [names, meaning, guarded(action)]);
}

const app = new CreditPage();
describePage(app);
bindControls(app);
if (app.page.groups.length) {
  app.openPlace();
  app.overview = new Overview(app);
}
if (app.page.run) new RunPanel(app);
