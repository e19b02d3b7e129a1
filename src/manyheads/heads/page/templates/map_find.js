"use strict";
// Ways into the maps: addresses of heads in the tables, and a search through the text.
(() => {
  const at = (id) => document.getElementById(id), { told, toMap, counted } = headMaps;
  const addresses = new Map(told.heads.flatMap((head) => [[head.address, head.address], [head.short, head.address]]));
  const ADDRESS = /(?:[a-z]+\/)?(?:\d+:\d+|L\d+H\d+)/g;
  for (const cell of document.querySelectorAll("main .scroll tbody th, main .scroll tbody td")) {
    const text = cell.textContent, parts = [];
    let from = 0;
    for (const found of text.matchAll(ADDRESS)) {
      if (!addresses.has(found[0])) continue;
      parts.push(text.slice(from, found.index), toMap(addresses.get(found[0]), found[0]));
      from = found.index + found[0].length;
    }
    if (from) cell.replaceChildren(...parts, text.slice(from));
  }

  // A word of the text: the tokens in which it begins, one after the other.
  const found = { at: -1, tokens: [] };
  function search() {
    const texts = headView.texts(), word = at("heads-find").value.toLowerCase();
    found.tokens = [];
    found.at = -1;
    let all = "";
    const starts = texts.map((text) => { const start = all.length; all += text.toLowerCase(); return start; });
    for (let from = word ? all.indexOf(word) : -1, t = 0; from >= 0; from = all.indexOf(word, from + 1)) {
      while (t + 1 < starts.length && starts[t + 1] <= from) t++;
      if (found.tokens[found.tokens.length - 1] !== t) found.tokens.push(t);
    }
    step(1);
  }
  function step(by) {
    const count = found.tokens.length;
    at("heads-found").textContent = !at("heads-find").value ? "" : count ? "" : "not in this text";
    if (!count) return;
    found.at = (found.at + by + count) % count;
    const able = headView.show(found.tokens[found.at]);
    at("heads-found").textContent = `${counted(found.at + 1)} of ${counted(count)}${able ? "" : ": its strongest keys are not kept"}`;
  }
  at("heads-find").addEventListener("input", search);
  at("heads-find").addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    step(event.shiftKey ? -1 : 1);
  });
  at("heads-found-previous").addEventListener("click", () => step(-1));
  at("heads-found-next").addEventListener("click", () => step(1));
})();
