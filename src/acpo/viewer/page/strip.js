// The chart under a pane: one bar per token, following the text as it scrolls. Where the
// completion is longer than the chart, a second row shows all of it and the part that is drawn.

const BAR = 4; // px of a token, at least
const PLOT = 46;
const TICKS = 50; // mismatches
const OVERVIEW = [56, 66];
const HEIGHT = 68;

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
    if (this.pending) return;
    this.pending = requestAnimationFrame(() => {
      this.pending = 0;
      this.draw();
    });
  }

  close() {
    this.resize.disconnect();
    cancelAnimationFrame(this.pending);
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

  draw() {
    const { element, view } = this;
    const width = element.clientWidth;
    if (!width) return;
    const ratio = window.devicePixelRatio || 1;
    element.width = Math.round(width * ratio);
    element.height = Math.round(HEIGHT * ratio);
    const context = element.getContext("2d");
    context.scale(ratio, ratio);
    const style = getComputedStyle(element);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const { start, shown } = this.stretch(width);
    const bar = Math.min(14, width / shown);
    this.drawn = { start, shown, bar };
    const [first, last] = view.pane.visible();
    const base = view.scale.signed ? PLOT / 2 : PLOT;
    context.fillStyle = colour("soft");
    context.fillRect((first - start) * bar, 0, (last - first + 1) * bar, PLOT);
    context.fillStyle = colour("line");
    context.fillRect(0, base - 0.5, width, 1);
    for (let i = start; i < Math.min(start + shown, view.completion.length); i++) {
      this.bar(context, colour, i, (i - start) * bar, bar, base);
    }
    if (view.pane.active >= start && view.pane.active < start + shown) {
      context.strokeStyle = colour("ink");
      context.strokeRect((view.pane.active - start) * bar + 0.5, 0.5, Math.max(bar - 1, 2), PLOT - 1);
    }
    if (shown < view.completion.length) this.overview(context, colour, width, [first, last]);
  }

  bar(context, colour, i, x, width, base) {
    const { view } = this;
    const value = view.column[i];
    if (!Number.isFinite(value)) return;
    const share = Math.max(-1, Math.min(1, value / view.scale.most));
    context.globalAlpha = view.isDim(i) ? 0.25 : 1;
    context.fillStyle = colour(view.scale.ramp(value));
    const height = Math.abs(share) * (base - 1);
    const wide = Math.max(1, width - 1);
    context.fillRect(x, value < 0 && view.scale.signed ? base : base - height, wide, height);
    if (isMismatch(view.completion, i)) {
      context.fillStyle = colour("ink");
      context.fillRect(x, TICKS, wide, 2.5);
    }
    context.globalAlpha = 1;
  }

  // Per pixel, the largest value of the tokens it stands for.
  overview(context, colour, width, [first, last]) {
    const { view } = this;
    const { length } = view.completion;
    const [top, bottom] = OVERVIEW;
    context.fillStyle = colour("muted");
    const columns = Math.floor(width);
    for (let x = 0; x < columns; x++) {
      let most = 0;
      const end = Math.ceil(((x + 1) * length) / columns);
      for (let i = Math.floor((x * length) / columns); i < end; i++) {
        const size = Math.abs(view.column[i]);
        if (size > most) most = size;
      }
      const height = Math.min(1, most / view.scale.most) * (bottom - top - 1);
      context.fillRect(x, bottom - height, 1, height);
    }
    context.strokeStyle = colour("ink");
    const left = (first / length) * width;
    const wide = Math.max(3, ((last - first) / length) * width);
    context.strokeRect(left + 0.5, top - 1.5, wide, bottom - top + 2);
  }

  click(event) {
    const { completion, pane } = this.view;
    if (!this.drawn || !completion.length) return;
    const inOverview = event.offsetY > TICKS + 4 && this.drawn.shown < completion.length;
    const at = inOverview
      ? (event.offsetX / this.element.clientWidth) * completion.length
      : this.drawn.start + event.offsetX / this.drawn.bar;
    pane.element.focus({ preventScroll: true });
    pane.activate(Math.min(completion.length - 1, Math.max(0, Math.floor(at))));
  }
}
