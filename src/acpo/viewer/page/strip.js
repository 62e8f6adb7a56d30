// The chart under a pane: one bar per token, following the text as it scrolls. Where the
// completion is longer than the chart, a second row shows all of it and the part that is drawn.

const BAR = 4; // px of a token, at least
const PLOT = 46;
const TICKS = 50; // mismatches
const OVERVIEW = [58, 68];

// All strips are measured before any is drawn: drawing first would lay the page out once for each.
const waiting = new Set();

class Strip {
  // view: {pane, completion, column, scale, isDim(i), label}
  constructor(view) {
    this.view = view;
    this.element = make("canvas", "strip");
    this.element.setAttribute("role", "img");
    this.element.addEventListener("click", (event) => this.click(event));
    this.resize = new ResizeObserver(() => this.request());
    this.resize.observe(this.element);
  }

  request() {
    if (!waiting.size) {
      requestAnimationFrame(() => {
        const strips = [...waiting].filter((one) => one.measure());
        waiting.clear();
        for (const one of strips) one.draw();
      });
    }
    waiting.add(this);
  }

  close() {
    this.resize.disconnect();
    waiting.delete(this);
  }

  // The tokens in the upper chart: all, or a stretch that moves with the text from end to end.
  stretch(width) {
    const { length } = this.view.completion;
    const room = Math.floor(width / BAR);
    if (length <= room) return { start: 0, shown: Math.max(length, 1) };
    const { scrollTop, scrollHeight, clientHeight } = this.view.pane.element;
    const progress = scrollHeight > clientHeight ? scrollTop / (scrollHeight - clientHeight) : 0;
    return { start: Math.round(Math.min(progress, 1) * (length - room)), shown: room };
  }

  measure() {
    const width = this.element.clientWidth;
    if (!width) return false;
    const stretch = this.stretch(width);
    const bar = Math.min(14, width / stretch.shown);
    this.drawn = { ...stretch, bar, width, visible: this.view.pane.visible() };
    return true;
  }

  draw() {
    const { view } = this;
    const { start, shown, bar, width, visible } = this.drawn;
    const { length } = view.completion;
    const whole = shown >= length;
    const context = this.canvas(width, whole ? TICKS + 4 : OVERVIEW[1] + 2);
    const colour = this.colours();
    const [first, last] = visible;
    const base = view.scale.signed ? PLOT / 2 : PLOT;
    if (last - first + 1 < length) {
      context.fillStyle = colour.soft;
      context.fillRect((first - start) * bar, 0, (last - first + 1) * bar, PLOT);
    }
    context.fillStyle = colour.line;
    context.fillRect(0, base - 0.5, width, 1);
    for (let i = start; i < Math.min(start + shown, length); i++) {
      this.bar(context, colour, i, (i - start) * bar, bar, base);
    }
    const active = view.pane.active - start;
    if (active >= 0 && active < shown) {
      context.strokeStyle = colour.ink;
      context.strokeRect(active * bar + 0.5, 0.5, Math.max(bar - 1, 2), PLOT - 1);
    }
    if (!whole) this.overview(context, colour, width, visible);
  }

  // A blank canvas of this size, in pixels of the page.
  canvas(width, height) {
    const { element } = this;
    const ratio = window.devicePixelRatio || 1;
    const size = [Math.round(width * ratio), Math.round(height * ratio)];
    if (element.width !== size[0] || element.height !== size[1]) {
      [element.width, element.height] = size;
      element.style.height = `${height}px`;
    }
    const context = element.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    return context;
  }

  colours() {
    const style = getComputedStyle(this.element);
    const names = ["soft", "line", "ink", "muted", "seq", "pos", "neg"];
    return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`)]));
  }

  bar(context, colour, i, x, width, base) {
    const { view } = this;
    const value = view.column[i];
    if (!Number.isFinite(value)) return;
    const share = view.scale.share(value);
    context.globalAlpha = view.isDim(i) ? 0.25 : 1;
    context.fillStyle = colour[view.scale.ramp(value)];
    const height = Math.abs(share) * (base - 1);
    const wide = Math.max(1, width - 1);
    context.fillRect(x, value < 0 && view.scale.signed ? base : base - height, wide, height);
    if (isMismatch(view.completion, i)) {
      context.fillStyle = colour.ink;
      context.fillRect(x, TICKS, wide, 2.5);
    }
    context.globalAlpha = 1;
  }

  // Per pixel, the largest share of the tokens it stands for.
  peaks(columns) {
    const { column, completion, scale } = this.view;
    if (this.peaksOf !== scale || this.peakValues.length !== columns) {
      this.peaksOf = scale;
      this.peakValues = new Float32Array(columns);
      for (let i = 0; i < completion.length; i++) {
        const x = Math.floor((i * columns) / completion.length);
        this.peakValues[x] = Math.max(this.peakValues[x], Math.abs(scale.share(column[i])));
      }
    }
    return this.peakValues;
  }

  overview(context, colour, width, [first, last]) {
    const { completion } = this.view;
    const [top, bottom] = OVERVIEW;
    context.fillStyle = colour.muted;
    this.peaks(Math.floor(width)).forEach((peak, x) => {
      const height = peak * (bottom - top - 1);
      context.fillRect(x, bottom - height, 1, height);
    });
    context.strokeStyle = colour.ink;
    const left = (first / completion.length) * width;
    const wide = Math.max(3, ((last - first) / completion.length) * width);
    context.strokeRect(left + 0.5, top - 1.5, wide, bottom - top + 2);
  }

  click(event) {
    const { completion, pane } = this.view;
    if (!this.drawn || !completion.length) return;
    const inOverview = event.offsetY > TICKS + 4 && this.drawn.shown < completion.length;
    const at = inOverview
      ? (event.offsetX / this.element.clientWidth) * completion.length
      : this.drawn.start + event.offsetX / this.drawn.bar;
    pane.activate(Math.min(completion.length - 1, Math.max(0, Math.floor(at))));
    pane.element.focus({ preventScroll: true });
  }
}
