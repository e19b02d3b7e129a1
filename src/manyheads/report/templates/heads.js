
"use strict";
// The map of one head, or of two beside each other, on its text: whom a token looks at, or who looks at it.
const headView = (() => {
  const at = (id) => document.getElementById(id), view = at("heads-view");
  const { told, share, decoded, made, toMap, percent, printed, inLine, counted } = headMaps;
  const canvas = { first: at("heads-first"), grid: at("heads-grid"), stripFirst: at("heads-strip-first"), strip: at("heads-strip") };
  const boxes = { queries: at("heads-queries"), keys: at("heads-keys") }, shown = { queries: null, keys: null };
  // Shown first of a head: a token at which its role can be seen. Early ones see too little to tell.
  const EARLY = 16, FAINT = 0.05, CLEAREST = 12, AROUND = 12;
  let number = -1, row = 0, map = null, lit = [], held = false, order = [], turn = 0, sought = null, pointer = "";
  let other = null, chosenKey = -1;  // the map beside this one; the token whose lookers are shown, -1 where a token's keys are

  const colour = (name) => getComputedStyle(view).getPropertyValue(name).trim();

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

  const same = () => map.stage.queries === map.stage.keys;
  const keyBox = () => same() ? boxes.queries : boxes.keys;
  const textsOf = (side) => told.texts[map.stage[side]];

  function fill(which, name) {
    if (shown[which] === name) return;
    shown[which] = name;
    const box = boxes[which], kept = which === "queries" ? new Map(map.stage.rows.map((t, r) => [t, r])) : new Map();
    box.replaceChildren(...told.texts[name].map((text, t) => {
      const span = document.createElement("span");
      span.textContent = printed(text);
      span.dataset.token = t;
      if (kept.has(t)) { span.className = "row"; span.dataset.row = kept.get(t); }
      return span;
    }));
    box.scrollTop = 0;
    if (which === "queries") sayWhich();
  }

  // Stretches of neighbours among the rows, as [first row, last row].
  function passages() {
    const found = [];
    map.stage.rows.forEach((t, r) => {
      if (r && map.stage.rows[r - 1] === t - 1) found[found.length - 1][1] = r;
      else found.push([r, r]);
    });
    return found;
  }

  function sayWhich() {
    const rows = map.stage.rows.length, all = textsOf("queries").length, parts = passages().length;
    at("heads-which").textContent = rows === all
      ? "Every token can be pointed at."
      : `${counted(rows)} of the ${counted(all)} tokens can be pointed at, those in dark ink, in ${parts} passages from the start to the end.`;
  }

  const strongest = (r) => headMaps.strongest(map, r);

  // What the role of a head is about, where the words tell: whether a key is one that it should look at.
  const again = (query, key) => textsOf("keys")[key] === textsOf("queries")[query] && !(same() && key === query);
  const behindAgain = (query, key) => key > 0 && again(query, key - 1);
  const pronoun = /^\s*(he|she|it|they|him|her|them|his|its|their)\s*$/i, stop = /^[\s\p{P}]+$/u;
  const suits = {
    "previous token": (query, key) => key === query - 1,
    "next token": (query, key) => key === query + 1,
    "itself": (query, key) => key === query,
    "induction": behindAgain,
    "duplicate token": again,
    "coreference": (query, key) => key !== query && pronoun.test(textsOf("queries")[query]),
    "delimiter": (query, key) => stop.test(textsOf("keys")[key]),
  };

  // The rows of a head, those first at which what it does shows best: by weight on keys that suit its role, else on any one.
  function clearest() {
    const rows = map.stage.rows, suiting = suits[told.heads[number].role];
    const late = [...rows.keys()].filter((r) => rows[r] >= EARLY), all = late.length ? late : [...rows.keys()];
    const sum = (r, wanted) => strongest(r).reduce((found, [key, weight]) => found + (wanted(rows[r], key) ? weight : 0), 0);
    const sorted = (value) => {
      const values = new Map(all.map((r) => [r, value(r)]));
      return { most: Math.max(...values.values()), rows: all.sort((a, b) => values.get(b) - values.get(a)).slice(0, CLEAREST) };
    };
    const own = suiting && sorted((r) => sum(r, suiting));
    return own && own.most > FAINT ? own.rows : sorted((r) => share(map.weights[r * map.stage.strongest])).rows;
  }

  function light(span, kind, weight) {
    if (!span) return;
    span.classList.add(kind);
    span.style.setProperty("--weight", weight.toFixed(3));
    lit.push([span, kind, weight]);
  }

  function place(query, key) {
    if (!same()) return `token ${counted(key + 1)}`;
    const back = query - key;
    return back === 0 ? "itself" : back > 0 ? `${counted(back)} back` : `${counted(-back)} ahead`;
  }

  // A token with what stands around it, on one line: the words before end where it begins.
  function inContext(texts, token, query) {
    const before = made("span", "before"), after = made("span", "after"), word = inLine(texts[token]) || "·";
    const mine = query !== null && again(query, token), behind = query !== null && behindAgain(query, token);
    const left = texts.slice(Math.max(token - AROUND, 0), token).map(inLine);
    if (behind) before.append(made("span", "", left.slice(0, -1).join("")), made("u", "", left[left.length - 1]));
    else before.append(made("span", "", left.join("")));
    const lead = /^\s*/.exec(word)[0];
    before.lastChild.append(lead);
    after.append(made("b", "", mine ? made("u", "", word.slice(lead.length)) : word.slice(lead.length)));
    after.append(made("span", "", texts.slice(token + 1, token + 1 + AROUND).map(inLine).join("")));
    return [before, after];
  }

  function line(kind, side, token, weight, words, query) {
    const button = made("button", ""), box = side === "queries" ? boxes.queries : keyBox(), texts = textsOf(side);
    const amount = made("span", "share", weight === null ? "" : percent(weight), ...(weight === null ? [] : [made("i", "")]));
    button.type = "button";
    button.setAttribute("aria-label", `${weight === null ? "" : `${percent(weight)} `}“${inLine(texts[token]).trim()}”, ${words}: scroll the text to it`);
    button.append(amount, ...inContext(texts, token, query), made("span", "place", words));
    button.addEventListener("click", () => seek(box, token));
    const entry = made("li", kind, button);
    entry.style.setProperty("--weight", (weight || 0).toFixed(3));
    return entry;
  }

  function headline(token, side, words) {
    const word = textsOf(side)[token].replace(/\n/g, "⏎");
    at("heads-told").replaceChildren(
      made("span", "token", `“${word.trim() || word}”`), ` (token ${counted(token + 1)}${held ? ", held" : ""}) ${words}`);
  }

  function tell(query, keys, first) {
    headline(query, "queries", "looks at");
    at("heads-list").replaceChildren(
      line("query", "queries", query, null, "chosen", null),
      line("first", "keys", 0, first, "the first", query),
      ...keys.map(([key, weight]) => line("", "keys", key, weight, place(query, key), query)));
    at("heads-on-key").replaceChildren();
  }

  // The other head on the same token: its keys in a list of their own, and underlined in the text.
  function tellOther(query, lines) {
    const box = at("heads-beside");
    box.hidden = !other;
    if (!other) return;
    const fits = other.stage === map.stage, name = others.selectedOptions[0].textContent;
    at("heads-beside-told").textContent = fits ? name : `${name}: it reads another side of the model, so no token is the same`;
    at("heads-beside-list").replaceChildren(...(fits ? lines(other) : []));
  }

  // Who looks at a token: rows of this head, and the heads whose rows look at it most.
  function tellLookers(key) {
    const of = (which) => headMaps.lookers(which, key).slice(0, CLEAREST);
    const listed = (which) => of(which).map(([r, weight]) => {
      const query = map.stage.rows[r];
      return line("", "queries", query, weight, place(query, key), null);
    });
    headline(key, "keys", "is looked at by");
    const found = listed(map);
    at("heads-list").replaceChildren(line("query", "keys", key, null, "chosen", null), ...found);
    if (!found.length) at("heads-list").append(made("li", "none", "none of the tokens whose strongest keys are kept"));
    tellOther(key, listed);
    if (held) {
      at("heads-on-key").replaceChildren("Heads that look at it most, in the mean of these tokens: ",
        ...headMaps.headsOn(map.stage, key).slice(0, CLEAREST).flatMap(([n, weight]) => [toMap(told.heads[n].address, told.heads[n].short), ` ${percent(weight)} `]));
    } else at("heads-on-key").replaceChildren("Click the token to see which heads look at it most.");
    return of(map);
  }

  function drawStrip(query, keys, first) {
    const most = Math.max(...keys.map(([, weight]) => weight), 1e-9), all = textsOf(query === null ? "queries" : "keys").length;
    const ratio = window.devicePixelRatio || 1;
    const started = (target) => {
      target.width = Math.round(target.clientWidth * ratio);
      target.height = Math.round(target.clientHeight * ratio);
      return target.getContext("2d");
    };
    const drawing = started(canvas.strip), { width, height } = canvas.strip;
    for (const [key, weight] of keys) {
      const part = weight / most, wide = 3 * ratio;
      drawing.fillStyle = colour("--accent");
      drawing.fillRect(Math.min(key / all * width, width - wide), height * (1 - part), wide, height * part);
    }
    const beside = started(canvas.stripFirst), tall = canvas.stripFirst.height;
    beside.fillStyle = colour("--first");
    beside.fillRect(0, tall * (1 - first), canvas.stripFirst.width, tall * first);
    at("heads-strip-scale").textContent = keys.length ? `0 to ${percent(most)}` : query === null ? "none" : "none but the first";
    at("heads-last").textContent = counted(all);
    at("heads-row").hidden = query === null;
    if (query !== null) at("heads-row").style.top = `${((query + 0.5) / textsOf("queries").length * 100).toFixed(2)}%`;
  }

  // The margin of a text: which passages can be pointed at, what is seen now, where the chosen token and its keys are.
  function drawMarks(which) {
    const box = boxes[which], spans = box.children, height = box.scrollHeight || 1, marks = [];
    const mark = (kind, from, to, weight) => {
      const one = made("i", kind), start = from.offsetTop, end = to.offsetTop + to.offsetHeight;
      one.style.cssText = `top: ${start / height * 100}%; height: ${(end - start) / height * 100}%; --weight: ${weight.toFixed(3)}`;
      marks.push(one);
    };
    const seen = made("i", "seen");
    seen.style.cssText = `top: ${box.scrollTop / height * 100}%; height: ${box.clientHeight / height * 100}%`;
    marks.push(seen);
    const rows = map.stage.rows;
    if (which === "queries") for (const [a, b] of passages()) mark("row", spans[rows[a]], spans[rows[b]], 1);
    for (const [span, kind, weight] of lit) if (span.parentNode === box) mark(kind, span, span, weight);
    at(`heads-${which}-marks`).replaceChildren(...marks);
  }

  function drawAllMarks() {
    drawMarks("queries");
    if (!same()) drawMarks("keys");
  }

  function darken() {
    for (const [span, kind] of lit) span.classList.remove(kind);
    lit = [];
  }

  function choose(next) {
    row = Math.max(0, Math.min(next, map.stage.rows.length - 1));
    chosenKey = -1;
    darken();
    const query = map.stage.rows[row], keys = strongest(row), first = share(map.first[row]);
    const most = Math.max(...keys.map(([, weight]) => weight), 1e-9), spans = keyBox().children;
    light(spans[0], "first", first);
    for (const [key, weight] of keys) light(spans[key], "key", weight / most);
    light(boxes.queries.children[query], "now", 1);
    tell(query, keys, first);
    tellOther(query, (which) => {
      const own = headMaps.strongest(which, row);
      for (const [key, weight] of own) light(spans[key], "beside", weight / Math.max(own[0][1], 1e-9));
      return [line("first", "keys", 0, share(which.first[row]), "the first", query),
        ...own.map(([key, weight]) => line("", "keys", key, weight, place(query, key), query))];
    });
    drawStrip(query, keys, first);
    drawAllMarks();
  }

  function chooseKey(key) {
    chosenKey = Math.max(0, Math.min(key, textsOf("keys").length - 1));
    darken();
    const found = tellLookers(chosenKey), most = Math.max(...found.map(([, weight]) => weight), 1e-9);
    for (const [r, weight] of found) light(boxes.queries.children[map.stage.rows[r]], "key", weight / most);
    light(keyBox().children[chosenKey], "now", 1);
    drawStrip(null, found.map(([r, weight]) => [map.stage.rows[r], weight]), 0);
    drawAllMarks();
  }

  // A token by what is asked of tokens: whom it looks at, or who looks at it.
  const backwards = () => at("heads-by").checked;
  function point(box, token) {
    if (backwards()) { if (box === keyBox()) chooseKey(token); }
    else if (box === boxes.queries && map.stage.rows.includes(token)) choose(map.stage.rows.indexOf(token));
  }
  const refresh = () => chosenKey >= 0 ? chooseKey(chosenKey) : choose(row);

  function centre(box, span) {
    if (span.offsetTop < box.scrollTop || span.offsetTop + span.offsetHeight > box.scrollTop + box.clientHeight) {
      box.scrollTop = span.offsetTop - box.clientHeight / 2;
    }
  }

  const reveal = () => centre(boxes.queries, boxes.queries.children[map.stage.rows[row]]);

  function seek(box, token) {
    if (sought) sought.classList.remove("found");
    sought = box.children[token];
    sought.classList.add("found");
    centre(box, sought);
    box.scrollIntoView({ block: "nearest" });
  }

  function open(n) {
    const before = map && map.stage, keep = at("heads-keep").checked;
    number = (n + headMaps.count) % headMaps.count;
    map = decoded(number);
    const head = told.heads[number];
    if (sought) sought.classList.remove("found");
    if (before !== map.stage) shown.queries = null;
    fill("queries", map.stage.queries);
    at("heads-of-keys").hidden = same();
    if (!same()) fill("keys", map.stage.keys);
    at("heads-head").value = number;
    at("heads-words").textContent = head.words;
    for (const cell of document.querySelectorAll(".head[data-head]")) {
      cell.classList.toggle("chosen", cell.dataset.head === head.address);
    }
    document.dispatchEvent(new CustomEvent("head", { detail: head.address }));
    drawBlocks();
    order = clearest();
    turn = 0;
    if (before !== map.stage || !keep) held = false;
    if (backwards() && before === map.stage && chosenKey >= 0) chooseKey(chosenKey);
    else { choose(before === map.stage && keep ? row : order[0]); reveal(); }
    if (!same()) centre(boxes.keys, keyBox().children[(strongest(row)[0] || [0])[0]]);
  }

  view.hidden = false;
  at("heads-head").addEventListener("change", (event) => open(Number(event.target.value)));
  at("heads-previous").addEventListener("click", () => open(number - 1));
  at("heads-next").addEventListener("click", () => open(number + 1));
  at("heads-clearest").addEventListener("click", () => {
    turn = (turn + 1) % order.length;
    choose(order[turn]);
    reveal();
  });
  for (const box of [boxes.queries, boxes.keys]) {
    const tokenOf = (event) => event.target.dataset && event.target.dataset.token;
    box.addEventListener("pointerover", (event) => {
      const now = `${event.screenX} ${event.screenY}`, moved = now !== pointer;
      pointer = now;
      if (!held && moved && tokenOf(event) !== undefined) point(box, Number(tokenOf(event)));  // the text may move under a still pointer
    });
    box.addEventListener("click", (event) => {
      if (tokenOf(event) === undefined) return;
      const token = Number(tokenOf(event)), now = backwards() ? chosenKey : map.stage.rows[row];
      if (!backwards() && (box !== boxes.queries || !map.stage.rows.includes(token))) return;
      held = !(held && token === now);
      point(box, token);
    });
  }
  boxes.queries.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (event.key === "Escape") { held = false; refresh(); }
    if (!step) return;
    event.preventDefault();
    if (backwards() && same()) { chooseKey(Math.max(chosenKey, 0) + step); centre(keyBox(), keyBox().children[chosenKey]); }
    else { choose(row + step); reveal(); }
  });
  for (const which of ["queries", "keys"]) {
    const box = boxes[which], marks = at(`heads-${which}-marks`);
    box.addEventListener("scroll", () => drawMarks(which), { passive: true });
    marks.addEventListener("click", (event) => {
      const part = (event.clientY - marks.getBoundingClientRect().top) / marks.clientHeight;
      box.scrollTop = part * box.scrollHeight - box.clientHeight / 2;
    });
  }
  canvas.grid.addEventListener("click", (event) => {
    const block = Math.floor(event.offsetY / canvas.grid.clientHeight * map.stage.down);
    const wanted = (block + 0.5) * map.stage.blockQueries, rows = map.stage.rows;
    choose(rows.reduce((best, t, r) => Math.abs(t - wanted) < Math.abs(rows[best] - wanted) ? r : best, 0));
    reveal();
  });
  const numbers = new Map(told.heads.flatMap((head, n) => [[head.address, n], [head.short, n]]));
  document.addEventListener("click", (event) => {
    const address = event.target.dataset && event.target.dataset.head;
    if (!numbers.has(address)) return;
    open(numbers.get(address));
    if (event.target.dataset.show) view.scrollIntoView({ block: "start" });
  });
  for (const way of document.getElementsByName("heads-way")) {
    way.addEventListener("change", () => {
      held = false;
      if (backwards()) chooseKey((strongest(row)[0] || [0])[0]);
      else choose(row);
    });
  }
  const others = at("heads-other");
  others.append(...[...at("heads-head").children].map((choice) => choice.cloneNode(true)));
  others.value = "";
  others.addEventListener("change", () => {
    other = others.value === "" ? null : decoded(Number(others.value));
    view.classList.toggle("two", other !== null);
    refresh();
  });

  const redraw = () => { drawBlocks(); refresh(); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  open(told.start);
  let width = boxes.queries.clientWidth;
  window.addEventListener("resize", () => {
    if (boxes.queries.clientWidth !== width) { width = boxes.queries.clientWidth; redraw(); }
  });

  // What a search through the text needs: its tokens, and to show one of them; false where no row of it is kept.
  return {
    texts: () => textsOf(backwards() ? "keys" : "queries"),
    show(token) {
      const box = backwards() ? keyBox() : boxes.queries, able = backwards() || map.stage.rows.includes(token);
      held = held || able;
      point(box, token);
      seek(box, token);
      return able;
    },
  };
})();
