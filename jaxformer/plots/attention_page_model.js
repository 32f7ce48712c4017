
"use strict";
// State of the page, weights, and descriptions.

const data = JSON.parse(document.getElementById("data").textContent);
const KINDS = {
  encoder: { name: "Encoder self-attention", from: "source", to: "source" },
  decoder: { name: "Decoder self-attention", from: "target", to: "target" },
  cross: { name: "Encoder-decoder attention", from: "target", to: "source" },
};
const PANELS = { together: "Heads together", apart: "One per head", whole: "All tokens, then one" };
const LAYOUTS = { columns: "columns", rows: "rows, as in the paper" };
const FIGURES = {
  3: "a distant dependency of one word, all heads",
  4: "two heads with sharp attention for one word: all tokens of the first, then that word in both",
  5: "two heads that perform different tasks",
};
// Distinct for color-blind readers (after Okabe and Ito); contrast of at least 3:1 with the page.
const LIGHT = "#0072b2 #d55e00 #00805c #b0508a #946200 #2b88bd #5a5a5a #7a3fd0".split(" ");
const DARK = "#4aa8e8 #ff8a3d #2fd0a0 #e79fc8 #f0c040 #a5dcff #c4c4c4 #b99cff".split(" ");
const STEP = { columns: 22, rows: 20 }; // pixels from token to token
const GAP = 200; // pixels between rows of tokens
const [NARROWEST, WIDEST] = [96, 300]; // pixels between columns of tokens
const STRIP = 64; // maximum pixels for the squares of all heads
const FAINT = 0.01; // smallest weight that gets a line

const byId = (id) => document.getElementById(id);
const make = (tag, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
};

// ---- State. A token is {side: "from" or "to", index}, where "from" are queries and "to" are keys.
// At most one token each is hovered, focused by keyboard, and kept by a click.
const longest = Math.max(data.source.length, data.target.length);
const state = {
  kind: data.start.kind,
  layer: data.start.layer,
  heads: data.start.heads,
  panels: "together",
  layout: longest > 24 ? "rows" : "columns",
  figure: null,
};
const layerCount = () => data.sizes[state.kind][0];
const headCount = () => data.sizes[state.kind][1];
let hovered = null;
let focused = null;
let kept = null;
const chosen = () => hovered || focused || kept;
const same = (a, b) => a === b || Boolean(a && b && a.side === b.side && a.index === b.index);

// ---- Weights: uint16, as fractions of 65535, [layers, heads, queries, keys].
const decoded = {};
function weights(kind) {
  if (!decoded[kind]) {
    const bytes = Uint8Array.from(atob(data.weights[kind]), (c) => c.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    decoded[kind] = Float32Array.from(
      { length: bytes.length / 2 }, (_, i) => view.getUint16(2 * i, true) / 65535);
  }
  return decoded[kind];
}
const tokens = (side) => data[KINDS[state.kind][side]];
function weight(head, query, key) {
  const [queries, keys] = [tokens("from").length, tokens("to").length];
  return weights(state.kind)[((state.layer * headCount() + head) * queries + query) * keys + key];
}
/** The weight between a token and one of the other side, whichever is the query. */
const tie = (head, token, other) =>
  token.side === "from" ? weight(head, token.index, other) : weight(head, other, token.index);
const across = (side) => (side === "from" ? "to" : "from");

// ---- Words.
const plain = (piece) => piece.replace(/\u2581/g, " ").trim() || "space";
const quoted = (side, index) => `\u201c\u2068${plain(tokens(side)[index])}\u2069\u201d`;
const percent = (w) => `${(100 * w).toFixed(w < 0.0995 ? 1 : 0)}%`;
const numbers = (heads) => {
  if (heads.length === headCount() && heads.length > 1) return `all ${heads.length} heads`;
  const names = heads.map((head) => head + 1);
  const last = names.pop();
  return names.length ? `heads ${names.join(", ")} and ${last}` : `head ${last}`;
};
const capital = (text) => text[0].toUpperCase() + text.slice(1);
function ranked(token, heads) {
  const mean = tokens(across(token.side)).map(
    (_, i) => heads.reduce((sum, head) => sum + tie(head, token, i), 0) / heads.length);
  return mean.map((w, i) => [w, i]).sort((a, b) => b[0] - a[0]);
}
function describe(token, heads) {
  const where = `${KINDS[state.kind].name}, layer ${state.layer + 1} of ${layerCount()}`;
  if (!heads.length) return `${where}. No head is chosen.`;
  if (!token) return `${where}, ${numbers(heads)}. Choose a token to see its attention.`;
  const other = across(token.side);
  const strongest = (list, count) => ranked(token, list).slice(0, count)
    .filter(([w]) => w >= 0.0005).map(([w, i]) => `${quoted(other, i)} ${percent(w)}`);
  const next = tokens("from")[token.index + 1];
  const purpose = token.side === "from" && KINDS[state.kind].from === "target" && next
    ? `, predicting \u201c\u2068${plain(next)}\u2069\u201d,` : "";
  const verb = token.side === "from" ? "attends to" : "is attended to by";
  const top = strongest(heads, 5).join(", ") || "nothing";
  let text = `${where}. ${quoted(token.side, token.index)}, token ${token.index + 1}${purpose} `;
  text += `${verb}: ${top}`;
  if (heads.length === 1) return `${text} (head ${heads[0] + 1}).`;
  // A longer list would be hard to follow; the table has the weights of every head.
  if (heads.length > 8) return `${text} (mean of ${heads.length} heads).`;
  const each = heads.map((head) => `${head + 1} ${strongest([head], 1)[0] || "nothing"}`);
  return `${text} (mean of ${heads.length} heads). Strongest in head ${each.join(", ")}.`;
}
