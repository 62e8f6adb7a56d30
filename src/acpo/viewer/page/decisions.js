// What the reviewer has decided, kept in this browser where it lets us, and as it is exported.

class Decisions {
  constructor(page) {
    this.page = page;
    this.key = `acpo-review:${page.digest}`;
    this.byItem = new Map();
    this.reviewer = "";
    this.restored = 0;
    this.stored = this.restore();
    this.unsaved = false;
    window.addEventListener("beforeunload", (event) => {
      if (this.unsaved && !this.stored) event.preventDefault();
    });
  }

  get(index) {
    return this.byItem.get(index) ?? null;
  }

  set(index, decision) {
    if (decision) this.byItem.set(index, { ...decision, when: new Date().toISOString() });
    else this.byItem.delete(index);
    this.save();
  }

  note(index, text) {
    const decision = this.get(index);
    if (!decision) return;
    decision.note = text;
    this.save();
  }

  name(text) {
    this.reviewer = text;
    this.save();
  }

  save() {
    this.unsaved = true;
    if (!this.stored) return;
    try {
      const kept = { reviewer: this.reviewer, decisions: [...this.byItem] };
      localStorage.setItem(this.key, JSON.stringify(kept));
    } catch {
      this.stored = false;
    }
  }

  // False where the browser keeps nothing for pages like this one.
  restore() {
    try {
      localStorage.setItem(`${this.key}:try`, "1");
      localStorage.removeItem(`${this.key}:try`);
      const kept = JSON.parse(localStorage.getItem(this.key) ?? "null");
      if (typeof kept?.reviewer === "string") this.reviewer = kept.reviewer.slice(0, 200);
      for (const [index, decision] of kept?.decisions ?? []) {
        if (!this.sound(index, decision)) continue;
        this.byItem.set(index, decision);
        this.restored += 1;
      }
      return true;
    } catch {
      return false;
    }
  }

  // Other pages can write where we read.
  sound(index, decision) {
    const item = this.page.items[index];
    if (!Number.isInteger(index) || !item || typeof decision?.note !== "string") return false;
    if (Number.isNaN(Date.parse(decision.when))) return false;
    if ((item.right === null) !== (decision.error === null)) return false;
    const [first, end] = decision.span ?? [];
    const placed = Number.isInteger(first) && Number.isInteger(end);
    const inside = placed && first >= 0 && first < end && end <= item.length;
    if (decision.decision === "reject") return decision.span === null;
    if (decision.decision === "move") return inside && decision.annotator === null;
    const proposal = item.proposals.find(({ annotator }) => annotator === decision.annotator);
    return (
      decision.decision === "accept" &&
      inside &&
      String(proposal?.span ?? "") === String(decision.span)
    );
  }

  // `stands(index)` says which decisions still count.
  exported(stands) {
    const decisions = [...this.byItem]
      .filter(([index]) => stands(index))
      .sort(([a], [b]) => a - b)
      .map(([index, { decision, span, annotator, error, note, when }]) => {
        const { prompt_id, wrong, right, proposals } = this.page.items[index];
        const proposed = proposals.filter((one) => one.span).map((one) => [one.annotator, one.span]);
        return {
          prompt_id,
          wrong,
          right,
          decision,
          span,
          annotator,
          error,
          proposed: Object.fromEntries(proposed),
          note,
          when,
        };
      });
    this.unsaved = false;
    return {
      format: "acpo-review",
      version: 2,
      trace: this.page.trace,
      step: this.page.step,
      reviewer: this.reviewer.trim(),
      exported: new Date().toISOString(),
      decisions,
    };
  }
}
