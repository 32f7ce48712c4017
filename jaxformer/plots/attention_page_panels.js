
"use strict";
// The panels: queries and keys, with lines and squares between them.

// ---- Colors.
const root = document.documentElement;
const preference = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => root.dataset.theme === "dark";
function color(head) {
  if (headCount() <= LIGHT.length) return (isDark() ? DARK : LIGHT)[head];
  // Neighbors differ in lightness, too.
  const lightness = (isDark() ? 0.74 : 0.5) + (head % 2) * 0.1;
  return `oklch(${lightness} 0.15 ${Math.round((360 * head) / headCount())})`;
}
function setTheme(dark) {
  root.dataset.theme = dark ? "dark" : "light";
  byId("theme").setAttribute("aria-pressed", String(dark));
  for (const swatch of document.querySelectorAll(".swatch")) {
    swatch.style.setProperty("--head", color(Number(swatch.dataset.head)));
  }
}
function swatch(head) {
  const square = make("span", { className: "swatch" });
  square.dataset.head = head;
  square.style.setProperty("--head", color(head));
  return square;
}

// ---- Panels.
let panels = [];
function arranged() {
  const heads = state.heads;
  const title = heads.length ? capital(numbers(heads)) : "No head";
  if (state.panels === "apart" && heads.length) {
    return heads.map((head) => ({ heads: [head], title: `Head ${head + 1}` }));
  }
  if (state.panels === "whole" && heads.length) {
    return [
      { heads: [heads[0]], title: `Head ${heads[0] + 1}, all tokens`, always: "all" },
      { heads, title: `${title}, one token`, always: "one" },
    ];
  }
  return [{ heads, title }];
}
function buildPanels() {
  const layout = state.layout;
  panels = arranged().map((panel) => {
    const canvas = make("canvas");
    canvas.setAttribute("aria-hidden", "true");
    const heading = make("h2", {}, ...panel.heads.map(swatch), panel.title);
    const lists = { from: tokenList("from", panel.title), to: tokenList("to", panel.title) };
    const graph = make("div", { className: `graph ${layout}` }, lists.from, canvas, lists.to);
    // A language model has one text and no source.
    const [from, to] = ["from", "to"].map((side) => data.source.length ? KINDS[state.kind][side] : "text");
    const legend = `${from} (queries) \u2192 ${to} (keys)`;
    const words = make("div", { className: "side", textContent: legend });
    const section = make("section", { className: "panel" }, heading, words, graph);
    section.setAttribute("aria-label", panel.title);
    graph.style.setProperty("--step", `${STEP[layout]}px`);
    const buttons = { from: [...lists.from.children], to: [...lists.to.children] };
    return { ...panel, section, canvas, lists, buttons, gap: 0, painted: null, picture: null };
  });
  byId("panels").replaceChildren(...panels.map((panel) => panel.section));
  for (const panel of panels) fit(panel);
}
/** Width of the longest piece in rem, at most 9; longer pieces are truncated. */
function lengthOf(pieces) {
  return Math.min(9, 1.6 + 0.5 * Math.max(...pieces.map((piece) => [...piece].length)));
}
/** Pixels between the two sides; columns adapt to the window, so that a phone shows both. */
function gap() {
  if (state.layout === "rows") return GAP;
  const rem = parseFloat(getComputedStyle(root).fontSize);
  const words = rem * (lengthOf(tokens("from")) + lengthOf(tokens("to")));
  // Narrower panels fit beside each other.
  const widest = panels.length > 1 ? WIDEST / 2 : WIDEST;
  return Math.max(NARROWEST, Math.min(widest, root.clientWidth - words - 4 * rem));
}
function tokenList(side, title) {
  const pieces = tokens(side);
  const list = make("div", { className: `tokens ${side === "from" ? "queries" : "keys"}` });
  list.setAttribute("role", "toolbar");
  list.setAttribute("aria-orientation", state.layout === "columns" ? "vertical" : "horizontal");
  const role = side === "from" ? "queries" : "keys";
  list.setAttribute("aria-label", `${title}: ${KINDS[state.kind][side]}, ${role}`);
  list.style.setProperty("--length", `${lengthOf(pieces).toFixed(2)}rem`);
  const stop = chosen() && chosen().side === side ? chosen().index : 0;
  list.append(...pieces.map((piece, index) => {
    const parts = piece.split("\u2581").flatMap((part, i) =>
      i ? [make("span", { className: "space", textContent: "\u00b7" }), part] : [part]);
    const token = make("button", { type: "button", className: "token", dir: "auto" }, ...parts);
    token.title = plain(piece);
    token.tabIndex = index === stop ? 0 : -1;
    token.setAttribute("aria-label", `${plain(piece)}, ${index + 1} of ${pieces.length}`);
    token.setAttribute("aria-pressed", "false");
    Object.assign(token.dataset, { side, index });
    return token;
  }));
  return list;
}
/** Makes the canvas as sharp as the screen; setting its size clears it. */
function fit(panel) {
  const long = STEP[state.layout] * Math.max(tokens("from").length, tokens("to").length);
  panel.gap = gap();
  const [width, height] = state.layout === "columns" ? [panel.gap, long] : [long, panel.gap];
  const ratio = devicePixelRatio || 1;
  Object.assign(panel.canvas, { width: width * ratio, height: height * ratio });
  panel.canvas.style.width = `${width}px`;
  panel.canvas.style.height = `${height}px`;
  panel.canvas.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
  outdate(panel);
}
function outdate(panel) {
  panel.painted = panel.picture = null;
}

// ---- Painting. "along" runs along a list of tokens, "over" from queries to keys.
function paint(panel) {
  const token = panel.always === "all" ? null : chosen();
  const now = token ? `${token.side} ${token.index}` : "all";
  if (panel.painted !== now) {
    panel.painted = now;
    if (token) draw(panel, token);
    else drawAll(panel);
  }
  mark(panel);
}
/** Draws the thousands of lines of all tokens once, and caches them as an image. */
function drawAll(panel) {
  if (!panel.picture) {
    draw(panel, null);
    const { width, height } = panel.canvas;
    panel.picture = Object.assign(make("canvas"), { width, height });
    panel.picture.getContext("2d").drawImage(panel.canvas, 0, 0);
    return;
  }
  const context = panel.canvas.getContext("2d");
  context.save();
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.clearRect(0, 0, panel.canvas.width, panel.canvas.height);
  context.drawImage(panel.picture, 0, 0);
  context.restore();
}
function draw(panel, token) {
  const context = panel.canvas.getContext("2d");
  context.clearRect(0, 0, panel.canvas.width, panel.canvas.height);
  if (!token && panel.always === "one") return;
  const rows = state.layout === "rows";
  const end = panel.gap;
  const cell = Math.min(9, STRIP / Math.max(1, panel.heads.length));
  const strip = token ? cell * panel.heads.length + 4 : 0;
  const near = { from: token?.side === "to" ? strip : 0, to: token?.side === "from" ? strip : 0 };
  const spread = Math.min(2, 12 / Math.max(1, panel.heads.length));
  const place = (index, order) =>
    (index + 0.5) * STEP[state.layout] + (order - (panel.heads.length - 1) / 2) * spread;
  for (const { order, query, key, w } of linesOf(panel.heads, token)) {
    const [a, b, over] = [place(query, order), place(key, order), end - near.to];
    context.strokeStyle = color(panel.heads[order]);
    context.globalAlpha = opacity(w, token);
    context.lineWidth = 1 + 2 * w;
    context.beginPath();
    context.moveTo(...(rows ? [a, near.from] : [near.from, a]));
    context.lineTo(...(rows ? [b, over] : [over, b]));
    context.stroke();
  }
  if (token) drawSquares(context, panel, token, cell, end - strip + 4);
  context.globalAlpha = 1;
}
/** Returns the lines to draw, the strongest last, so that it is on top. */
function linesOf(heads, token) {
  const lines = [];
  const [queries, keys] = ["from", "to"].map((side) =>
    token?.side === side ? [token.index] : tokens(side).map((_, index) => index));
  heads.forEach((head, order) => {
    for (const query of queries) {
      for (const key of keys) {
        const w = weight(head, query, key);
        if (w >= FAINT) lines.push({ order, query, key, w });
      }
    }
  });
  return lines.sort((a, b) => a.w - b.w);
}
/** Raises the opacity of small weights for one token; for all, they would hide large ones. */
const opacity = (w, token) => (token ? Math.sqrt(w) : w);
function drawSquares(context, panel, token, cell, far) {
  const size = STEP[state.layout] - 6;
  panel.heads.forEach((head, order) => {
    context.fillStyle = color(head);
    const over = (token.side === "from" ? far : 0) + order * cell;
    tokens(across(token.side)).forEach((_, other) => {
      const along = other * STEP[state.layout] + 3;
      context.globalAlpha = opacity(tie(head, token, other), token);
      context.fillRect(
        ...(state.layout === "rows" ? [along, over, size, cell - 1] : [over, along, cell - 1, size]));
    });
  });
}
/** Marks the chosen token, the kept one, and the strongest of each head on the other side. */
function mark(panel) {
  const token = chosen();
  const strong = new Set();
  if (token && panel.always !== "all") {
    for (const head of panel.heads) {
      const [w, index] = ranked(token, [head])[0];
      if (w >= FAINT) strong.add(index);
    }
  }
  for (const side of ["from", "to"]) {
    panel.buttons[side].forEach((button, index) => {
      const isChosen = Boolean(token) && token.side === side && token.index === index;
      button.classList.toggle("chosen", isChosen);
      button.classList.toggle(
        "strong", Boolean(token) && token.side !== side && strong.has(index));
      const pressed = String(same(kept, { side, index }));
      if (button.getAttribute("aria-pressed") !== pressed) {
        button.setAttribute("aria-pressed", pressed);
      }
    });
  }
}
