// A training run: its curves, what it was told, its dashboards; while it trains, as they come.

const EVERY = 2000; // ms between questions to the server
const reading = (value) => number(value, Math.abs(value) >= 100 ? 0 : 3);
const CURVE = { width: 300, height: 90 };

class RunPanel {
  constructor(app) {
    this.app = app;
    this.shape = $("curve-shape").namespaceURI;
    this.show(app.page.run);
    $("run").hidden = false;
    if (!app.page.live) return;
    $("follow").closest("label").hidden = false;
    const keep = $("keep").appendChild(make("a", "", "Save as a file"));
    Object.assign(keep, { href: "report.html", download: `${plainText(app.page.run.name)}.html` });
    this.ask();
  }

  show(run) {
    $("run-name").textContent = plainText(run.name, 80);
    $("run-step").textContent = `step ${run.step}`;
    fill($("curves"), ...run.curves.map((curve) => this.curve(curve)));
    if (!run.curves.length) $("curves").append(make("p", "muted", "Nothing is logged yet."));
    const told = run.warnings.map(({ step, words }) => {
      const line = make("li", "", `step ${step}: `);
      showText(line.appendChild(make("bdi")), words, 2000);
      return line;
    });
    fill($("warnings"), ...told.reverse());
    fill($("reports"), ...Object.entries(run.reports).map((entry) => this.report(entry)));
  }

  // A dashboard that has an address is linked; of the others, the command that opens it is shown.
  report([name, where]) {
    const isAddress = /^https?:\/\//.test(where);
    const element = make(isAddress ? "a" : "span", "fact", plainText(name, 40));
    if (isAddress) Object.assign(element, { href: where, target: "_blank", rel: "noreferrer" });
    else if (where) element.append(" ", make("code", "", plainText(where, 200)));
    return element;
  }

  svg(tag, attributes) {
    const element = document.createElementNS(this.shape, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  }

  curve({ label, points }) {
    const { width, height } = CURVE;
    const [steps, values] = [points.map(([step]) => step), points.map(([, value]) => value)];
    const [first, last] = [steps[0], steps.at(-1)];
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const x = (step) => ((step - first) / (last - first || 1)) * (width - 8) + 4;
    const y = (value) => height - 4 - ((value - low) / (high - low || 1)) * (height - 8);
    const line = points.map(([step, value]) => `${x(step).toFixed(1)},${y(value).toFixed(1)}`);
    const figure = make("figure", "curve");
    const chart = this.svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
    const dot = this.svg("circle", { r: 3, cx: x(last), cy: y(values.at(-1)) });
    chart.append(this.svg("polyline", { points: line.join(" ") }), dot);
    const caption = make("figcaption");
    const here = make("output", "number");
    const read = (i) => {
      dot.setAttribute("cx", x(steps[i]));
      dot.setAttribute("cy", y(values[i]));
      here.textContent = `${reading(values[i])} at ${steps[i]}`;
    };
    chart.addEventListener("pointermove", ({ clientX }) => {
      const box = chart.getBoundingClientRect();
      const step = first + ((clientX - box.left) / box.width) * (last - first);
      const after = steps.findIndex((one) => one >= step);
      read(after < 0 ? steps.length - 1 : after);
    });
    chart.addEventListener("pointerleave", () => read(steps.length - 1));
    read(steps.length - 1);
    caption.append(make("b", "", label), here);
    const between = `${reading(low)} to ${reading(high)}, steps ${first} to ${last}`;
    const range = make("p", "muted", between);
    chart.setAttribute("aria-label", `${label}: ${range.textContent}`);
    figure.append(caption, chart, range);
    return figure;
  }

  // What is new, again and again. Rollouts on show stay where "follow" is off.
  async ask() {
    try {
      const part = $("follow").checked ? this.app.page.part : "";
      const answer = await fetch(`run.json?part=${part}`);
      if (!answer.ok) throw new Error(await answer.text());
      const { run, blocks } = await answer.json();
      this.show(run ?? blocks.page.run);
      if (blocks && $("follow").checked) this.app.replace(blocks);
      $("run-state").textContent = "live";
    } catch (error) {
      const ended = "the server ended; this is what came until then";
      const isGone = error instanceof TypeError;
      $("run-state").textContent = isGone ? ended : plainText(error.message, 200);
    }
    setTimeout(() => this.ask(), EVERY);
  }
}
