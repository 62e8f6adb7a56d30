// The tokens of one completion as text, in a pane that scrolls.
//
// Tokens live in blocks of a few hundred. A block's elements are made when it comes near the
// visible part and given up when it has left: a pane costs what is on show, however long it is.

const BLOCK = 256; // tokens after which a line break ends a block
const LONGEST_BLOCK = 512; // tokens after which a block ends anyway
const LINE = 24; // px, as in tokens.css
const USUAL_WIDTH = 46; // characters of a line, to guess heights with
const NEAR = 900; // px beyond the visible part, where blocks are made before they come into view

let panes = 0;

// The place of the first item for which a test holds, as it does for all after it; or the last.
function firstWhere(items, test) {
  let low = 0;
  let high = items.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (test(items[middle])) high = middle;
    else low = middle + 1;
  }
  return low;
}

class TokenPane {
  // options: label, for screen readers; and, each optional, folded: so many first tokens are shown
  // when asked for; classOf(i): further classes of token i; labelOf(i): a short text under it;
  // onPoint(i or null), onActive(i), onScroll(), onUnfold(a token that was folded).
  constructor(completion, options) {
    this.completion = completion;
    this.options = options;
    this.name = `pane${panes++}`;
    this.active = -1;
    this.version = 0;
    this.element = make("div", "pane");
    this.element.tabIndex = 0;
    this.element.setAttribute("role", "listbox");
    this.element.setAttribute("aria-label", options.label);
    this.blocks = this.plan();
    this.element.append(...this.blocks.map((block) => block.element));
    this.byElement = new Map(this.blocks.map((block) => [block.element, block]));
    this.observer = new IntersectionObserver((entries) => this.seen(entries), {
      root: this.element,
      rootMargin: `${NEAR}px 0px`,
    });
    this.arrival = new IntersectionObserver((entries) => this.arrive(entries), {
      rootMargin: "100px",
    });
    this.arrival.observe(this.element);
    this.listen();
  }

  plan() {
    const { completion } = this;
    const { folded = 0 } = this.options;
    const blocks = [];
    let start = 0;
    let lines = 0;
    let column = 0;
    for (let i = 0; i < completion.length; i++) {
      const text = completion.text(i);
      column += Math.min(text.length, LONGEST);
      const breaks = text.includes("\n");
      const size = i + 1 - start;
      const last = i + 1 === completion.length || i + 1 === folded;
      const ends = last || (breaks && size >= BLOCK) || size >= LONGEST_BLOCK;
      if (breaks || ends) {
        lines += Math.ceil(column / USUAL_WIDTH);
        column = 0;
      }
      if (!ends) continue;
      blocks.push(this.planBlock(start, i + 1, lines * LINE, i < folded));
      start = i + 1;
      lines = 0;
    }
    if (!blocks.length) this.element.append(make("p", "empty", "No tokens."));
    return blocks;
  }

  // Until it is built, a block is as high as it probably will be.
  planBlock(start, end, height, folded) {
    const element = make("div", "block");
    element.setAttribute("role", "presentation");
    if (folded) {
      element.append(make("span", "fold", `${count(end - start, "token")} as above`));
      element.addEventListener("click", () => this.token(start), { once: true });
    } else element.style.minHeight = `${height + 6}px`;
    return { start, end, element, folded, built: false, version: -1 };
  }

  listen() {
    const { element, options } = this;
    element.addEventListener("pointerover", (event) => {
      const token = event.target.closest(".t");
      if (token) options.onPoint?.(token.index);
    });
    element.addEventListener("pointerleave", () => options.onPoint?.(null));
    element.addEventListener("click", (event) => {
      const token = event.target.closest(".t");
      if (token) this.activate(token.index);
    });
    // A press of the pointer focuses too: scrolling then would take its token away before the click.
    element.addEventListener("focus", () => {
      const pressed = !element.matches(":focus-visible");
      if (this.completion.length && !pressed) this.activate(Math.max(this.active, 0));
    });
    element.addEventListener("keydown", (event) => this.key(event));
    element.addEventListener("scroll", () => options.onScroll?.(), { passive: true });
  }

  // Blocks -----------------------------------------------------------------------------------

  // The pane itself came near the window: from now on its blocks are watched.
  arrive(entries) {
    if (!entries.some(({ isIntersecting }) => isIntersecting)) return;
    this.arrival.disconnect();
    for (const block of this.blocks) this.observer.observe(block.element);
  }

  seen(entries) {
    for (const entry of entries) {
      const block = this.byElement.get(entry.target);
      block.near = entry.isIntersecting;
      if (block.near && !block.folded) this.paint(block);
      else this.release(block, entry.boundingClientRect.height);
    }
    this.options.onScroll?.();
  }

  build(block) {
    if (block.built) return;
    block.built = true;
    const { folded } = block;
    block.folded = false;
    block.tokens = [];
    const nodes = [];
    for (let i = block.start; i < block.end; i++) {
      const token = make("span", "t");
      token.index = i;
      token.id = `${this.name}-${i}`;
      token.setAttribute("role", "option");
      showText(token, this.completion.text(i));
      block.tokens.push(token);
      nodes.push(token);
      // A break at a token's end goes behind it; at the end of a block there is one anyway.
      if (token.lastChild.nodeValue === "\n") {
        token.lastChild.remove();
        if (i + 1 < block.end) nodes.push("\n");
      }
    }
    fill(block.element, ...nodes);
    block.element.style.minHeight = "";
    if (folded) this.options.onUnfold?.(block.start);
  }

  // Leave a block's room empty; the active token's stays, for screen readers follow it.
  release(block, height) {
    const active = block.start <= this.active && this.active < block.end;
    if (!block.built || active) return;
    block.built = false;
    block.version = -1;
    block.tokens = null;
    block.element.style.minHeight = `${height}px`;
    block.element.replaceChildren();
  }

  paint(block) {
    this.build(block);
    if (block.version === this.version) return;
    block.version = this.version;
    for (const token of block.tokens) {
      const classes = this.options.classOf?.(token.index) ?? "";
      const active = token.index === this.active;
      token.className = `t ${classes}${active ? " active" : ""}`;
      if (active) token.setAttribute("aria-selected", "true");
      const value = this.options.labelOf?.(token.index);
      if (value === undefined) delete token.dataset.v;
      else token.dataset.v = value;
    }
  }

  // Something `classOf` depends on changed: near blocks now, the others when seen.
  repaint() {
    this.version += 1;
    for (const block of this.blocks) if (block.near && !block.folded) this.paint(block);
  }

  paintAll() {
    for (const block of this.blocks) this.paint(block);
  }

  token(i) {
    const block = this.blocks[firstWhere(this.blocks, ({ end }) => end > i)];
    this.paint(block);
    return block.tokens[i - block.start];
  }

  // Active token -----------------------------------------------------------------------------

  activate(i) {
    this.mark(i);
    this.token(i).scrollIntoView({ block: "nearest", inline: "nearest" });
    this.options.onActive?.(i);
  }

  mark(i) {
    if (this.active >= 0) {
      const before = this.token(this.active);
      before.classList.remove("active");
      before.removeAttribute("aria-selected");
    }
    this.active = i;
    if (i < 0) {
      this.element.removeAttribute("aria-activedescendant");
      return;
    }
    const token = this.token(i);
    token.classList.add("active");
    token.setAttribute("aria-selected", "true");
    this.element.setAttribute("aria-activedescendant", token.id);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.completion.length) return;
    const last = this.completion.length - 1;
    const at = Math.max(this.active, 0);
    const moves = {
      ArrowRight: () => at + 1,
      ArrowLeft: () => at - 1,
      ArrowDown: () => this.lineFrom(at, 1),
      ArrowUp: () => this.lineFrom(at, -1),
      PageDown: () => this.lineFrom(at, Math.max(1, Math.floor(this.element.clientHeight / LINE))),
      PageUp: () => this.lineFrom(at, -Math.max(1, Math.floor(this.element.clientHeight / LINE))),
      Home: () => 0,
      End: () => last,
    };
    if (!moves[event.key]) return;
    event.preventDefault();
    this.activate(Math.min(Math.max(moves[event.key](), 0), last));
  }

  // The token nearest to token i, so many lines below it.
  lineFrom(i, lines) {
    const box = this.token(i).getBoundingClientRect();
    const middle = (box.left + box.right) / 2;
    const first = this.firstBelow(box.top + lines * LINE + 2);
    let best = first;
    let distance = Infinity;
    const top = this.token(first).getBoundingClientRect().bottom;
    for (let j = first; j < this.completion.length; j++) {
      const other = this.token(j).getBoundingClientRect();
      if (other.top >= top) break;
      const away = Math.abs((other.left + other.right) / 2 - middle);
      if (away < distance) [best, distance] = [j, away];
    }
    return best === i ? i + Math.sign(lines) : best;
  }

  // The first token whose lower edge is below y (in the window); blocks and tokens go downward.
  firstBelow(y) {
    const isBelow = (element) => element.getBoundingClientRect().bottom > y;
    const block = this.blocks[firstWhere(this.blocks, ({ element }) => isBelow(element))];
    if (block.folded) return block.start;
    this.paint(block);
    return block.start + firstWhere(block.tokens, isBelow);
  }

  // First and last token in view.
  visible() {
    if (!this.blocks.some(({ built }) => built)) return [0, 0];
    const box = this.element.getBoundingClientRect();
    return [this.firstBelow(box.top + 4), this.firstBelow(box.bottom - 4)];
  }

  close() {
    this.arrival.disconnect();
    this.observer.disconnect();
  }
}
