
"use strict";
(() => {
  const at = (id) => document.getElementById(id);
  const view = at("heads-view");
  const told = JSON.parse(at("heads-data").textContent);
  const maps = at("heads-maps").textContent.trim().split("\n");
  const canvas = { first: at("heads-first"), grid: at("heads-grid"), strip: at("heads-strip") };
  const boxes = { queries: at("heads-queries"), keys: at("heads-keys") };
  const shown = { queries: null, keys: null };
  let number = -1, row = 0, map = null, lit = [];

  const share = (byte) => (byte / 255) ** 2;
  const percent = (weight) =>
    weight >= 0.0995 ? `${Math.round(weight * 100)}%` : weight < 0.0005 ? "<0.1%" : `${(weight * 100).toFixed(1)}%`;
  const printed = (text) => text.replace(/\n/g, "⏎\n") || "·";
  const colour = (name) => getComputedStyle(view).getPropertyValue(name).trim();

  // A map: shares of the first token, of it by blocks, the grid (a triangle where nobody looks ahead), keys, weights.
  function decoded(n) {
    const stage = told.stages[told.heads[n].stage];
    const bytes = Uint8Array.from(atob(maps[n]), (letter) => letter.charCodeAt(0));
    const rows = stage.rows.length, { down, across, strongest } = stage;
    const triangle = told.heads[n].triangle;
    let from = 0;
    const take = (length) => bytes.subarray(from, from += length);
    const first = take(rows), firstBlocks = take(down);
    const flat = take(triangle ? down * (down + 1) / 2 : down * across);
    const keys = take(2 * rows * strongest), weights = take(rows * strongest);
    return {
      stage, first, firstBlocks, weights, triangle, flat,
      key: (r, i) => keys[2 * (r * strongest + i)] + 256 * keys[2 * (r * strongest + i) + 1],
    };
  }

  function paint(target, width, height, name, strength) {
    const found = /^#(..)(..)(..)/.exec(colour(name));
    const [red, green, blue] = found.slice(1).map((part) => parseInt(part, 16));
    target.width = width;
    target.height = height;
    const drawing = target.getContext("2d"), image = drawing.createImageData(width, height);
    for (let y = 0; y < height; y++) {
      for (let x = 0; x < width; x++) image.data.set([red, green, blue, Math.round(255 * strength(y, x))], 4 * (y * width + x));
    }
    drawing.putImageData(image, 0, 0);
  }

  function drawBlocks() {
    const { down, across, blockQueries, blockKeys } = map.stage;
    const most = Math.max(1, ...map.flat);
    const byte = (y, x) => map.triangle ? (x > y ? 0 : map.flat[y * (y + 1) / 2 + x]) : map.flat[y * across + x];
    paint(canvas.grid, across, down, "--accent", (y, x) => byte(y, x) / most);
    paint(canvas.first, 1, down, "--first", (y) => share(map.firstBlocks[y]));
    at("heads-scale").textContent =
      `Blocks of ${blockQueries} by ${blockKeys} tokens; full colour is ${percent(share(most))} of a block's attention.`;
  }

  function fill(which, name) {
    if (shown[which] === name) return;
    shown[which] = name;
    const box = boxes[which], kept = which === "queries" ? new Map(map.stage.rows.map((t, r) => [t, r])) : new Map();
    box.replaceChildren(...told.texts[name].map((text, t) => {
      const span = document.createElement("span");
      span.textContent = printed(text);
      if (kept.has(t)) { span.className = "row"; span.dataset.row = kept.get(t); }
      return span;
    }));
  }

  function keyBox() { return map.stage.queries === map.stage.keys ? boxes.queries : boxes.keys; }

  function light(span, kind, weight) {
    if (!span) return;
    span.classList.add(kind);
    span.style.setProperty("--weight", weight.toFixed(3));
    lit.push([span, kind]);
  }

  function strongest() {
    const found = [];
    for (let i = 0; i < map.stage.strongest; i++) {
      const weight = share(map.weights[row * map.stage.strongest + i]);
      if (weight > 0) found.push([map.key(row, i), weight]);
    }
    return found;
  }

  function word(text) {
    const span = document.createElement("span");
    span.className = "token";
    span.textContent = `“${text.replace(/\n/g, "⏎").trim() || text}”`;
    return span;
  }

  function item(...parts) {
    const line = document.createElement("li");
    line.append(...parts);
    return line;
  }

  function tell(query, keys, first) {
    const same = map.stage.queries === map.stage.keys, texts = told.texts;
    const place = (key) => {
      if (!same) return ` number ${key + 1}`;
      const back = query - key;
      return back === 0 ? " itself" : back > 0 ? ` ${back} back` : ` ${-back} ahead`;
    };
    const bold = (weight) => Object.assign(document.createElement("b"), { textContent: `${percent(weight)} ` });
    const list = document.createElement("ol");
    const head = item(bold(first), word(texts[map.stage.keys][0]), " the first token");
    head.className = "first";
    list.append(head, ...keys.map(([key, weight]) => item(bold(weight), word(texts[map.stage.keys][key]), place(key))));
    at("heads-told").replaceChildren(word(texts[map.stage.queries][query]), ` (token ${query + 1}) looks at`, list);
  }

  function drawStrip(query, keys, first) {
    const target = canvas.strip, ratio = window.devicePixelRatio || 1;
    const width = target.width = Math.round(target.clientWidth * ratio), height = target.height = Math.round(target.clientHeight * ratio);
    const drawing = target.getContext("2d"), all = told.texts[map.stage.keys].length;
    const bar = (token, part, name, wide) => {
      drawing.fillStyle = colour(name);
      drawing.fillRect(Math.min(token / all * width, width - wide), height * (1 - part), wide, height * part);
    };
    if (map.stage.queries === map.stage.keys) bar(query, 1, "--rule", 2 * ratio);
    const most = Math.max(...keys.map(([, weight]) => weight), 1e-9);
    for (const [key, weight] of keys) bar(key, weight / most, "--accent", 3 * ratio);
    bar(0, first, "--first", 4 * ratio);
  }

  function choose(next) {
    row = Math.max(0, Math.min(next, map.stage.rows.length - 1));
    for (const [span, kind] of lit) span.classList.remove(kind);
    lit = [];
    const query = map.stage.rows[row], keys = strongest(), first = share(map.first[row]);
    const most = Math.max(...keys.map(([, weight]) => weight), 1e-9), spans = keyBox().children;
    for (const [key, weight] of keys) light(spans[key], "key", weight / most);
    light(spans[0], "first", first);
    light(boxes.queries.children[query], "now", 1);
    tell(query, keys, first);
    drawStrip(query, keys, first);
  }

  function reveal() {
    const span = boxes.queries.children[map.stage.rows[row]], box = boxes.queries;
    if (span.offsetTop < box.scrollTop || span.offsetTop + span.offsetHeight > box.scrollTop + box.clientHeight) {
      box.scrollTop = span.offsetTop - box.clientHeight / 2;
    }
  }

  function open(n) {
    const before = map && map.stage;
    number = (n + maps.length) % maps.length;
    map = decoded(number);
    const head = told.heads[number], same = map.stage.queries === map.stage.keys;
    if (before !== map.stage) { shown.queries = null; row = map.stage.rows.length - 1; }
    fill("queries", map.stage.queries);
    for (const id of ["heads-of-keys", "heads-keys"]) at(id).hidden = same;
    if (!same) fill("keys", map.stage.keys);
    at("heads-head").value = number;
    at("heads-words").textContent = head.words;
    for (const cell of document.querySelectorAll(".head[data-head]")) {
      cell.classList.toggle("chosen", cell.dataset.head === head.address);
    }
    drawBlocks();
    choose(row);
    if (before !== map.stage) reveal();
  }

  view.hidden = false;
  at("heads-head").addEventListener("change", (event) => open(Number(event.target.value)));
  at("heads-previous").addEventListener("click", () => open(number - 1));
  at("heads-next").addEventListener("click", () => open(number + 1));
  const over = (event) => {
    const found = event.target.dataset && event.target.dataset.row;
    if (found !== undefined) choose(Number(found));
  };
  boxes.queries.addEventListener("pointerover", over);
  boxes.queries.addEventListener("click", over);
  boxes.queries.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    choose(row + step);
    reveal();
  });
  canvas.grid.addEventListener("click", (event) => {
    const block = Math.floor(event.offsetY / canvas.grid.clientHeight * map.stage.down);
    const wanted = (block + 0.5) * map.stage.blockQueries, rows = map.stage.rows;
    choose(rows.reduce((best, t, r) => Math.abs(t - wanted) < Math.abs(rows[best] - wanted) ? r : best, 0));
    reveal();
  });
  const numbers = new Map(told.heads.map((head, n) => [head.address, n]));
  document.addEventListener("click", (event) => {
    const address = event.target.dataset && event.target.dataset.head;
    if (numbers.has(address)) open(numbers.get(address));
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => open(number));
  open(told.start);
})();
