"use strict";
// What the bytes of the maps of heads say; map_view.js draws it.
const headMaps = (() => {
  const told = JSON.parse(document.getElementById("heads-data").textContent);
  const lines = document.getElementById("heads-maps").textContent.trim().split("\n");
  const share = (byte) => (byte / 255) ** 2;

  const percent = (weight) =>
    weight >= 0.0995 ? `${Math.round(weight * 100)}%` : weight < 0.0005 ? "<0.1%" : `${(weight * 100).toFixed(1)}%`;
  const printed = (text) => text.replace(/\n/g, "⏎\n") || "·";
  const inLine = (text) => text.replace(/\n/g, "⏎");
  const counted = (count) => count.toLocaleString("en");
  const made = (tag, className, ...parts) => {
    const element = document.createElement(tag);
    element.className = className;
    element.append(...parts);
    return element;
  };
  const toMap = (address, words) => {
    const button = made("button", "to-map", words);
    button.type = "button";
    button.dataset.head = address;
    button.dataset.show = "map";
    button.title = "where it looks";
    return button;
  };

  // A map: shares of the first token, of it by blocks, the grid (a triangle where nobody looks ahead), keys, weights.
  function decoded(n) {
    const stage = told.stages[told.heads[n].stage];
    const bytes = Uint8Array.from(atob(lines[n]), (letter) => letter.charCodeAt(0));
    const rows = stage.rows.length, { down, across, strongest: most } = stage;
    const triangle = told.heads[n].triangle;
    let from = 0;
    const take = (length) => bytes.subarray(from, from += length);
    const first = take(rows), firstBlocks = take(down);
    const flat = take(triangle ? down * (down + 1) / 2 : down * across);
    const keys = take(2 * rows * most), weights = take(rows * most);
    return {
      stage, first, firstBlocks, weights, triangle, flat,
      key: (r, i) => keys[2 * (r * most + i)] + 256 * keys[2 * (r * most + i) + 1],
    };
  }

  // The strongest keys of a row but the first token, falling, as [key, weight].
  function strongest(map, r) {
    const found = [];
    for (let i = 0; i < map.stage.strongest; i++) {
      const weight = share(map.weights[r * map.stage.strongest + i]);
      if (weight > 0) found.push([map.key(r, i), weight]);
    }
    return found;
  }

  // What a row gives to a key: 0 where it is not among the strongest that were kept.
  function weightOn(map, r, key) {
    if (key === 0) return share(map.first[r]);
    const { strongest: most } = map.stage;
    for (let i = 0; i < most; i++) if (map.key(r, i) === key) return share(map.weights[r * most + i]);
    return 0;
  }

  // The rows that look at a key, most first, as [row, weight].
  function lookers(map, key) {
    const found = map.stage.rows.map((_, r) => [r, weightOn(map, r, key)]).filter(([, weight]) => weight > 0);
    return found.sort((a, b) => b[1] - a[1]);
  }

  // The heads of a stage whose kept rows give most to a key in the mean, as [number, weight].
  function headsOn(stage, key) {
    const found = [];
    told.heads.forEach((head, n) => {
      if (told.stages[head.stage] !== stage) return;
      const map = decoded(n), able = stage.rows.filter((query) => !map.triangle || query >= key).length;
      const sum = stage.rows.reduce((all, _, r) => all + weightOn(map, r, key), 0);
      if (sum > 0) found.push([n, sum / able]);
    });
    return found.sort((a, b) => b[1] - a[1]);
  }

  return { told, made, toMap, percent, printed, inLine, counted, count: lines.length, share, decoded, strongest, lookers, headsOn };
})();
