
"use strict";
// Controls, pointer, keyboard, and the table.

// ---- The table of the weights that the panels show.
function fillTable() {
  if (!byId("numbers").open) return;
  const token = chosen();
  const side = token ? across(token.side) : "from";
  const header = make("tr", {}, cell("th", KINDS[state.kind][side], "col"),
    ...state.heads.map((head) => cell("th", `Head ${head + 1}`, "col")));
  const rows = tokens(side).map((piece, index) => make("tr", {}, cell("th", plain(piece), "row"),
    ...state.heads.map((head) => {
      if (token) return make("td", { className: "number" }, percent(tie(head, token, index)));
      const [w, key] = ranked({ side: "from", index }, [head])[0];
      return make("td", {}, `${plain(tokens("to")[key])} ${percent(w)}`);
    })));
  const name = token && quoted(token.side, token.index);
  let caption = "Key with the largest weight for each query; choose a token for all its weights";
  if (token?.side === "from") caption = `Attention of ${name} to each key`;
  if (token?.side === "to") caption = `Attention of each query to ${name}`;
  byId("table").replaceChildren(make("table", {}, make("caption", {}, caption),
    make("thead", {}, header), make("tbody", {}, ...rows)));
}
function cell(tag, text, scope) {
  return make(tag, { scope, dir: "auto" }, text);
}

// ---- Updates, at most one per frame; the spoken description waits until the pointer rests.
let frame = 0;
let spoken = 0;
function update() {
  frame = frame || requestAnimationFrame(() => {
    frame = 0;
    for (const panel of panels) paint(panel);
    clearTimeout(spoken);
    spoken = setTimeout(() => {
      const text = describe(chosen(), state.heads);
      if (byId("description").textContent !== text) byId("description").textContent = text;
      fillTable();
    }, 60);
  });
}
function rebuild() {
  hovered = focused = null;
  buildSizes();
  byId("caption").textContent =
    state.figure ? `As figure ${state.figure}: ${FIGURES[state.figure]}` : "";
  byId("caption").hidden = !state.figure;
  for (const button of byId("figures").children) {
    button.setAttribute("aria-pressed", String(button.dataset.figure === state.figure));
  }
  for (const input of document.querySelectorAll("#controls input")) {
    const value = input.name === "layer" || input.name === "head" ? Number(input.value) : input.value;
    input.checked = input.type === "checkbox"
      ? state.heads.includes(value) : state[input.name] === value;
  }
  buildPanels();
  update();
}

// ---- Controls.
function choice(type, name, value, ...label) {
  const id = `${name}-${value}`;
  const input = make("input", { type, name, value, id });
  return [input, make("label", { htmlFor: id, className: "chip" }, ...label)];
}
const range = (count) => Array.from({ length: count }, (_, i) => i);
let sized = null;
/** Makes the controls of layers and heads, which differ among the kinds of attention. */
function buildSizes() {
  if (sized === state.kind) return;
  sized = state.kind;
  byId("layers").replaceChildren(...range(layerCount()).flatMap(
    (layer) => choice("radio", "layer", layer, String(layer + 1))));
  const every = make("button", { type: "button", textContent: "All" });
  every.addEventListener("click", () => set({ heads: range(headCount()) }));
  const none = make("button", { type: "button", textContent: "None" });
  none.addEventListener("click", () => set({ heads: [] }));
  byId("heads").replaceChildren(...range(headCount()).flatMap(
    (head) => choice("checkbox", "head", head, swatch(head), String(head + 1))), every, none);
}
function buildControls() {
  const radios = (name, texts) => Object.entries(texts).flatMap(
    ([value, text]) => choice("radio", name, value, text));
  byId("figures").append(...Object.keys(FIGURES).map((number) => {
    const button = make("button", { type: "button", textContent: `Figure ${number}` });
    button.title = FIGURES[number];
    button.dataset.figure = number;
    button.addEventListener("click", () => show(number));
    return button;
  }));
  byId("kinds").append(...radios("kind", Object.fromEntries(
    Object.keys(data.weights).map((kind) => [kind, KINDS[kind].name]))));
  byId("panels-control").append(...radios("panels", PANELS));
  byId("layout").append(...radios("layout", LAYOUTS));
  byId("controls").addEventListener("change", changed);
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
}
function changed({ target }) {
  if (target.name === "head") {
    const head = Number(target.value);
    const others = state.heads.filter((other) => other !== head);
    set({ heads: target.checked ? [...others, head].sort((a, b) => a - b) : others });
  } else {
    set({ [target.name]: target.name === "layer" ? Number(target.value) : target.value });
  }
}
function set(changes) {
  const all = state.heads.length === headCount();
  Object.assign(state, changes, { figure: null });
  if ("kind" in changes) {
    // Another kind of attention has other tokens, and may have fewer layers and other heads.
    kept = null;
    state.layer = Math.min(state.layer, layerCount() - 1);
    state.heads = range(headCount()).filter((head) => all || state.heads.includes(head));
  }
  rebuild();
}
function show(figure) {
  const { layer, heads, token } = data.figures[figure];
  const arrangement = { 3: "together", 4: "whole", 5: "apart" }[figure];
  Object.assign(state, {
    kind: Object.keys(data.weights)[0], layer, heads, panels: arrangement, layout: "rows", figure: String(figure),
  });
  kept = token === null ? null : { side: "from", index: token };
  rebuild();
}

// ---- Tokens: pointer and keyboard.
function tokenOf(target) {
  const button = target instanceof Element ? target.closest(".token") : null;
  return button && { side: button.dataset.side, index: Number(button.dataset.index) };
}
function listen() {
  const area = byId("panels");
  const hover = (token) => {
    if (same(hovered, token)) return;
    hovered = token;
    update();
  };
  area.addEventListener("pointerover", (event) => {
    if (event.pointerType !== "touch") hover(tokenOf(event.target));
  });
  area.addEventListener("pointerleave", () => hover(null));
  area.addEventListener("focusin", (event) => {
    const token = tokenOf(event.target);
    focused = event.target.matches(":focus-visible") ? token : null;
    if (token) stopAt(event.target);
    update();
  });
  area.addEventListener("focusout", () => {
    focused = null;
    update();
  });
  area.addEventListener("click", (event) => {
    const token = tokenOf(event.target);
    if (!token) return;
    kept = same(kept, token) ? null : token;
    update();
  });
  area.addEventListener("keydown", move);
  addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    hovered = kept = focused = null;
    update();
  });
  byId("theme").addEventListener("click", () => repaint(!isDark()));
  preference.addEventListener("change", () => repaint(preference.matches));
  byId("numbers").addEventListener("toggle", fillTable);
  // Zooming, or moving to another screen, changes the pixel ratio.
  addEventListener("resize", () => {
    for (const panel of panels) fit(panel);
    update();
  });
}
function repaint(dark) {
  setTheme(dark);
  for (const panel of panels) outdate(panel);
  update();
}
/** Makes a token the only one of its list that Tab reaches. */
function stopAt(button) {
  for (const other of button.parentElement.children) other.tabIndex = other === button ? 0 : -1;
}
function move(event) {
  const token = tokenOf(event.target);
  if (!token || event.altKey || event.ctrlKey || event.metaKey) return;
  const list = event.target.closest(".tokens");
  const panel = panels.find(({ lists }) => Object.values(lists).includes(list));
  const columns = state.layout === "columns";
  const last = list.children.length - 1;
  const [back, on] = columns ? ["ArrowUp", "ArrowDown"] : ["ArrowLeft", "ArrowRight"];
  const [first, second] = columns ? ["ArrowLeft", "ArrowRight"] : ["ArrowUp", "ArrowDown"];
  let { side, index } = token;
  if (event.key === back) index = Math.max(0, index - 1);
  else if (event.key === on) index = Math.min(last, index + 1);
  else if (event.key === "Home") index = 0;
  else if (event.key === "End") index = last;
  else if (event.key === (side === "from" ? second : first)) {
    // Moves to the other end of the strongest line.
    index = panel.heads.length ? ranked(token, panel.heads)[0][1] : 0;
    side = across(side);
  } else return;
  event.preventDefault();
  const button = panel.lists[side].children[index];
  button.focus({ preventScroll: true });
  button.scrollIntoView({ block: "nearest", inline: "nearest" });
}

setTheme(preference.matches);
buildControls();
listen();
if (data.start.figure) show(data.start.figure);
else rebuild();
