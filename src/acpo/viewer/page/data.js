// Blocks of JSON, and the typed arrays inside them.

const ARRAYS = {
  f4: Float32Array,
  i4: Int32Array,
  u4: Uint32Array,
  u1: Uint8Array,
};

const fetched = new Map(); // blocks that came after the page

function readBlock(id) {
  return structuredClone(fetched.get(id)) ?? JSON.parse($(id).textContent);
}

function unpack(array) {
  if (!array) return null;
  const binary = atob(array.b);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return new ARRAYS[array.t](bytes.buffer);
}

const unpackAll = (columns) =>
  Object.fromEntries(Object.entries(columns).map(([name, array]) => [name, unpack(array)]));

// One completion of a group: its facts, its columns by name, and the text of every token.
class Completion {
  constructor(raw, pieces) {
    Object.assign(this, raw.facts);
    this.length = raw.length;
    this.pieces = pieces;
    this.piece = unpack(raw.piece);
    this.joined = raw.joined;
    this.columns = unpackAll(raw.columns);
    this.methods = Object.fromEntries(
      Object.entries(raw.methods).map(([method, columns]) => [method, unpackAll(columns)]),
    );
    this.packedTop = raw.top;
  }

  // What to show for token i: its own text, or the character it shares with its neighbours.
  text(i) {
    return this.joined[i] ?? this.ownText(i);
  }

  ownText(i) {
    return this.pieces[this.piece[i]];
  }

  // The likeliest tokens at position i, best first.
  alternatives(i) {
    if (!this.packedTop) return [];
    const { k, ...columns } = this.packedTop;
    this.top ??= unpackAll(columns);
    const found = [];
    for (let j = i * k; j < (i + 1) * k; j++) {
      if (Number.isNaN(this.top.logp[j])) break;
      const text = this.top.piece ? this.pieces[this.top.piece[j]] : `#${this.top.id[j]}`;
      found.push({ id: this.top.id[j], text, p: Math.exp(this.top.logp[j]) });
    }
    return found;
  }

  // The whole text, and which token each of its UTF-16 units belongs to.
  get search() {
    if (!this.searchText) {
      // What a token shows of a character that another one begins is no text to find.
      const found = (text) => (/^[\udc80-\udcff]+$/.test(text) ? "" : text);
      const texts = Array.from({ length: this.length }, (_, i) => found(this.text(i)));
      const owner = new Uint32Array(texts.reduce((sum, text) => sum + text.length, 0));
      let at = 0;
      texts.forEach((text, i) => {
        owner.fill(i, at, at + text.length);
        at += text.length;
      });
      this.searchText = { text: texts.join(""), owner };
    }
    return this.searchText;
  }
}

function openGroup(id) {
  const group = readBlock(id);
  group.completions = group.completions.map((raw) => new Completion(raw, group.pieces));
  return group;
}
