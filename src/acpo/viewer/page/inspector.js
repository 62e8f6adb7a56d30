// All numbers of one token, and what the policy would rather have said.

const READINGS = [
  ["p(y)", "probability of the sampled token", (c, i) => Math.exp(c.columns.logp?.[i])],
  ["p_max", "probability of the policy's mode", (c, i) => Math.exp(c.columns.log_pmax?.[i])],
  ["δ", "1 − p_max", (c, i) => c.columns.delta?.[i]],
  ["entropy", "nats", (c, i) => c.columns.entropy?.[i]],
  ["log p(y)", "under the scored policy", (c, i) => c.columns.logp?.[i]],
  ["log p_old(y)", "under the policy that sampled it", (c, i) => c.columns.old_logp?.[i]],
  ["log w", "log-ratio of the two", (c, i) => c.columns.logp?.[i] - c.columns.old_logp?.[i]],
];

const GIVEN = [
  ["advantage A", "advantage", true],
  ["credit c", "credit", false],
  ["update", "update", true],
];

function inspect(element, page, completion, i) {
  const title = make("div", "token");
  const text = make("span", "t");
  showText(text, completion.text(i), 2000);
  title.append(text);
  const place = `token ${i + 1} of ${completion.length} · id ${completion.columns.token_id[i]}`;
  const parts = [title, make("p", "muted", place), status(page, completion, i)];
  if (completion.joined[i] !== undefined) {
    const bytes = make("p", "muted", "part of a character; its own bytes: ");
    showText(bytes.appendChild(make("span")), completion.ownText(i));
    parts.push(bytes);
  }
  parts.push(given(page, completion, i), readings(completion, i), alternatives(completion, i));
  fill(element, ...parts.filter(Boolean));
}

function status(page, completion, i) {
  const line = make("p", "status");
  if (!completion.columns.is_mode) return null;
  if (isMismatch(completion, i)) line.append(make("span", "mismatch", "not the mode"));
  else line.append("the policy's mode");
  for (const { name, title } of page.methods) {
    if (!isReversed(completion, name, i)) continue;
    line.append(" · ", make("span", "reversed", `reversed by ${title}`));
  }
  return line;
}

// What each method gives this token: a column per method, or a row where there are many.
function given(page, completion, i) {
  const methods = page.methods.length ? page.methods : [{ name: "", title: page.method || "trace" }];
  const cell = ({ name }, [, column, signed]) => {
    const value = (name ? completion.methods[name] : completion.columns)[column]?.[i];
    return make("td", "number", number(value, 3, signed));
  };
  const many = methods.length > 3;
  const table = make("table", "given");
  const heads = many ? GIVEN.map(([label]) => label) : methods.map(({ title }) => title);
  table.createTHead().insertRow().append(make("th"), ...heads.map((text) => make("th", "", text)));
  const body = table.createTBody();
  const rows = many
    ? methods.map((method) => [method.title, GIVEN.map((what) => cell(method, what))])
    : GIVEN.map((what) => [what[0], methods.map((method) => cell(method, what))]);
  for (const [label, cells] of rows) body.insertRow().append(make("th", "", label), ...cells);
  return table;
}

function readings(completion, i) {
  const table = make("table", "readings");
  const body = table.createTBody();
  for (const [label, hint, read] of READINGS) {
    const value = read(completion, i);
    if (value === undefined || Number.isNaN(value)) continue;
    const row = body.insertRow();
    row.title = hint;
    row.append(make("th", "", label), make("td", "number", number(value, 4)));
  }
  return body.rows.length ? table : null;
}

function alternatives(completion, i) {
  const found = completion.alternatives(i);
  if (!found.length) return null;
  const table = make("table", "alternatives");
  table.append(make("caption", "", `the ${found.length} likeliest`));
  const body = table.createTBody();
  const sampled = completion.columns.token_id[i];
  if (completion.columns.logp && !found.some(({ id }) => id === sampled)) {
    const p = Math.exp(completion.columns.logp[i]);
    found.push({ id: sampled, text: completion.ownText(i), p });
  }
  for (const { id, text, p } of found) {
    const row = body.insertRow();
    row.append(make("td", "here", id === sampled ? "●" : ""));
    if (id === sampled) row.cells[0].title = "sampled";
    const cell = make("td", "piece");
    showText(cell.appendChild(make("bdi")), text, 40);
    const meter = make("td", "share");
    const filled = meter.appendChild(make("span"));
    filled.style.width = `${Math.max(0, Math.min(1, p)) * 100}%`;
    row.append(cell, meter, make("td", "number", number(p, 4)));
  }
  return table;
}

// The same in one sentence, for screen readers.
function announce(element, completion, i, value, quantity) {
  const mode = isMismatch(completion, i) ? ", not the mode" : "";
  const text = plainText(completion.text(i));
  element.textContent = `${text}, ${quantity.label} ${number(value)}${mode}, token ${i + 1}`;
}
