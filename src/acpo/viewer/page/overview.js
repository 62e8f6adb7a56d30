// All prompts and steps of the page in one table: sorted, filtered, and from there to the tokens.

const COLUMNS = [
  { key: "prompt", label: "prompt", text: true, of: (row) => row.name },
  { key: "step", label: "step", of: (row) => row.step },
  { key: "right", label: "right", of: (row) => (row.judged ? row.right / row.judged : NaN) },
  { key: "spread", label: "reward spread", of: (row) => row.spread ?? NaN },
  { key: "tokens", label: "tokens", of: (row) => row.tokens },
  { key: "up", label: "update up", of: (row, method) => row.methods[method]?.up ?? NaN },
  { key: "down", label: "update down", of: (row, method) => row.methods[method]?.down ?? NaN },
  { key: "reversed", label: "reversed", of: (row, method) => row.methods[method]?.reversed ?? NaN },
  { key: "apart", label: "methods apart", of: (row) => row.apart ?? NaN },
];

// Whether a group can teach anything.
function kindOf({ judged, spread }) {
  if (!judged) return "no verdict";
  return spread > 0 ? "mixed" : "silent";
}

class Overview {
  constructor(app) {
    this.app = app;
    this.rows = app.page.groups.flatMap(({ id, prompt, overview }, index) =>
      overview.map((row) => ({ ...row, index, kind: kindOf(row), name: plainText(prompt || id, 80) })),
    );
    this.order = { key: "", down: false };
    const head = make("tr");
    for (const column of COLUMNS) {
      const cell = head.appendChild(make("th"));
      const button = cell.appendChild(make("button", "", column.label));
      button.type = "button";
      button.id = `sort-${column.key}`;
      button.addEventListener("click", () => this.sort(column.key));
      column.cell = cell;
    }
    head.append(make("th", "", "kind"));
    fill($("overview-head"), head);
    this.elements = new Map(this.rows.map((row) => [row, this.element(row)]));
    $("overview-filter").oninput = $("overview-kind").onchange = () => this.show();
    $("overview").hidden = this.rows.length < 2;
    this.show();
  }

  element(row) {
    const line = make("tr");
    line.setAttribute("aria-label", `open prompt ${row.index + 1}, step ${row.step}`);
    const open = () => this.app.openPrompt(row.index, row.step);
    line.addEventListener("click", open);
    line.addEventListener("keydown", (event) => {
      const next = { ArrowDown: line.nextSibling, ArrowUp: line.previousSibling }[event.key];
      if (event.key === "Enter") open();
      else if (next) next.focus();
      else return;
      event.preventDefault();
    });
    return line;
  }

  // The numbers of a row for the method on show.
  fill(row) {
    const { method } = this.app.state;
    const cells = COLUMNS.map((column) => {
      const value = column.of(row, method);
      if (column.text) return make("td", "fact name", value);
      const whole = Number.isInteger(value);
      return make("td", "number", number(value, whole ? 0 : 2));
    });
    cells[2].textContent = row.judged ? `${row.right} / ${row.judged}` : "–";
    fill(this.elements.get(row), ...cells, make("td", `number kind ${row.kind}`, row.kind));
  }

  sort(key) {
    this.order = { key, down: this.order.key === key ? !this.order.down : key !== "prompt" };
    this.show();
  }

  show() {
    const wanted = $("overview-filter").value.toLowerCase();
    const kind = $("overview-kind").value;
    const shown = this.rows.filter(
      (row) => (kind === "all" || row.kind === kind) && row.name.toLowerCase().includes(wanted),
    );
    const column = COLUMNS.find(({ key }) => key === this.order.key);
    if (column) this.arrange(shown, column);
    for (const { key, cell } of COLUMNS) {
      const own = key === this.order.key;
      cell.setAttribute("aria-sort", own ? (this.order.down ? "descending" : "ascending") : "none");
    }
    for (const row of shown) this.fill(row);
    fill($("overview-rows"), ...shown.map((row) => this.elements.get(row)));
    $("overview-count").textContent = `${shown.length} of ${count(this.rows.length, "group")}`;
    this.mark();
  }

  // What is not known comes last, whichever way.
  arrange(rows, column) {
    const { method } = this.app.state;
    const sign = this.order.down ? -1 : 1;
    const value = new Map(rows.map((row) => [row, column.of(row, method)]));
    rows.sort((a, b) => {
      const [x, y] = [value.get(a), value.get(b)];
      if (column.text) return sign * x.localeCompare(y);
      if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y);
      return sign * (x - y);
    });
  }

  // One row is reached by Tab, the others from it: tokens must not lie behind a thousand rows.
  mark() {
    let reached = $("overview-rows").firstChild;
    for (const [row, element] of this.elements) {
      const here = row.index === this.app.index && row.step === this.app.state.step;
      element.setAttribute("aria-current", here ? "true" : "false");
      element.tabIndex = -1;
      if (here && element.isConnected) reached = element;
    }
    if (reached) reached.tabIndex = 0;
  }
}
