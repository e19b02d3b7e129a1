"use strict";
// The map of one head, or of two beside each other, on its text: whom a token looks at, or who looks at it.
const headView = (() => {
  const at = (id) => document.getElementById(id), view = at("heads-view");
  const { told, decoded, toMap, percent, strongest, share } = headMaps;
  const CLEAREST = 12;
  let number = -1, row = 0, map = null, held = false, order = [], turn = 0, pointer = "";
  let other = null, chosenKey = -1;  // the map beside this one; the token whose lookers are shown, -1 where a token's keys are

  // The other head on the same token: its keys in a list of their own, and underlined in the text.
  function tellOther(lines) {
    const box = at("heads-beside"), others = at("heads-other");
    box.hidden = !other;
    if (!other) return;
    const fits = other.stage === map.stage, name = others.selectedOptions[0].textContent;
    at("heads-beside-told").textContent = fits ? name : `${name}: it reads another side of the model, so no token is the same`;
    at("heads-beside-list").replaceChildren(...(fits ? lines(other) : []));
  }

  // Whom a row's token looks at.
  function choose(next) {
    row = Math.max(0, Math.min(next, map.stage.rows.length - 1));
    chosenKey = -1;
    headText.darken();
    const query = map.stage.rows[row], keys = strongest(map, row), first = share(map.first[row]);
    const light = (kind, found) => {
      const most = Math.max(...found.map(([, weight]) => weight), 1e-9);
      for (const [key, weight] of found) headText.light(headText.spanOf("keys", key), kind, weight / most);
    };
    headText.light(headText.spanOf("keys", 0), "first", first);
    light("key", keys);
    headText.light(headText.spanOf("queries", query), "now", 1);
    headLists.headline("queries", query, held, "looks at");
    headLists.list(map.stage, "queries", query, headLists.keysOf(map, row, query, keys));
    at("heads-on-key").replaceChildren();
    tellOther((which) => {
      const own = strongest(which, row);
      light("beside", own);
      return headLists.keysOf(which, row, query, own);
    });
    headCanvas.drawStrip(keys, first, headText.textsOf("keys").length, (query + 0.5) / headText.textsOf("queries").length);
    headText.markAll();
  }

  // Who looks at a token: rows of this head, and the heads whose rows look at it most.
  function chooseKey(key) {
    chosenKey = Math.max(0, Math.min(key, headText.textsOf("keys").length - 1));
    headText.darken();
    const lookers = (which) => headMaps.lookers(which, chosenKey).slice(0, CLEAREST);
    const found = lookers(map), most = Math.max(...found.map(([, weight]) => weight), 1e-9);
    headLists.headline("keys", chosenKey, held, "is looked at by");
    headLists.list(map.stage, "keys", chosenKey, headLists.lookersOf(map, chosenKey, found));
    tellOther((which) => headLists.lookersOf(which, chosenKey, lookers(which)));
    tellHeads();
    for (const [r, weight] of found) headText.light(headText.spanOf("queries", map.stage.rows[r]), "key", weight / most);
    headText.light(headText.spanOf("keys", chosenKey), "now", 1);
    headCanvas.drawStrip(found.map(([r, weight]) => [map.stage.rows[r], weight]), 0, headText.textsOf("queries").length, null);
    headText.markAll();
  }

  function tellHeads() {
    if (!held) return at("heads-on-key").replaceChildren("Click the token to see which heads look at it most.");
    const found = headMaps.headsOn(map.stage, chosenKey).slice(0, CLEAREST);
    at("heads-on-key").replaceChildren("Heads that look at it most, in the mean of these tokens: ",
      ...found.flatMap(([n, weight]) => [toMap(told.heads[n].address, told.heads[n].short), ` ${percent(weight)} `]));
  }

  // A token by what is asked of tokens: whom it looks at, or who looks at it.
  const backwards = () => at("heads-by").checked;
  function point(box, token) {
    if (backwards()) { if (box === headText.keyBox()) chooseKey(token); }
    else if (box === headText.boxes.queries && map.stage.rows.includes(token)) choose(map.stage.rows.indexOf(token));
  }
  const refresh = () => chosenKey >= 0 ? chooseKey(chosenKey) : choose(row);
  const reveal = () => headText.centre("queries", map.stage.rows[row]);
  const firstKey = () => (strongest(map, row)[0] || [0])[0];

  function open(n) {
    const before = map && map.stage, keep = at("heads-keep").checked;
    number = (n + headMaps.count) % headMaps.count;
    map = decoded(number);
    const head = told.heads[number];
    headText.forget();
    headText.show(map.stage);
    at("heads-head").value = number;
    at("heads-words").textContent = head.words;
    for (const cell of document.querySelectorAll(".head[data-head]")) {
      cell.classList.toggle("chosen", cell.dataset.head === head.address);
    }
    document.dispatchEvent(new CustomEvent("head", { detail: head.address }));
    headCanvas.drawBlocks(map);
    order = headRoles.clearest(map, head.role);
    turn = 0;
    if (before !== map.stage || !keep) held = false;
    if (backwards() && before === map.stage && chosenKey >= 0) chooseKey(chosenKey);
    else { choose(before === map.stage && keep ? row : order[0]); reveal(); }
    if (!headText.same()) headText.centre("keys", firstKey());
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
  for (const box of Object.values(headText.boxes)) {
    const tokenOf = (event) => event.target.dataset && event.target.dataset.token;
    box.addEventListener("pointerover", (event) => {
      const now = `${event.screenX} ${event.screenY}`, moved = now !== pointer;
      pointer = now;
      if (!held && moved && tokenOf(event) !== undefined) point(box, Number(tokenOf(event)));  // the text may move under a still pointer
    });
    box.addEventListener("click", (event) => {
      if (tokenOf(event) === undefined) return;
      const token = Number(tokenOf(event)), now = backwards() ? chosenKey : map.stage.rows[row];
      if (!backwards() && (box !== headText.boxes.queries || !map.stage.rows.includes(token))) return;
      held = !(held && token === now);
      point(box, token);
    });
  }
  headText.boxes.queries.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (event.key === "Escape") { held = false; refresh(); }
    if (!step) return;
    event.preventDefault();
    if (backwards() && headText.same()) { chooseKey(Math.max(chosenKey, 0) + step); headText.centre("keys", chosenKey); }
    else { choose(row + step); reveal(); }
  });
  headCanvas.blocks.addEventListener("click", (event) => {
    const block = Math.floor(event.offsetY / headCanvas.blocks.clientHeight * map.stage.down);
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
      if (backwards()) chooseKey(firstKey());
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

  const redraw = () => { headCanvas.drawBlocks(map); refresh(); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  open(told.start);
  let width = headText.boxes.queries.clientWidth;
  window.addEventListener("resize", () => {
    if (headText.boxes.queries.clientWidth !== width) { width = headText.boxes.queries.clientWidth; redraw(); }
  });

  // What a search through the text needs: its tokens, and to show one of them; false where no row of it is kept.
  return {
    texts: () => headText.textsOf(backwards() ? "keys" : "queries"),
    show(token) {
      const side = backwards() ? "keys" : "queries", able = backwards() || map.stage.rows.includes(token);
      held = held || able;
      point(backwards() ? headText.keyBox() : headText.boxes.queries, token);
      headText.seek(side, token);
      return able;
    },
  };
})();
