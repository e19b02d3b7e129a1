"use strict";
// The drawings of a map: shares of attention by blocks of the text, and where in the text one token looks.
const headCanvas = (() => {
  const at = (id) => document.getElementById(id), view = at("heads-view"), { share, percent, counted } = headMaps;
  const blocks = at("heads-grid"), blocksFirst = at("heads-first"), strip = at("heads-strip"), stripFirst = at("heads-strip-first");
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

  function drawBlocks(map) {
    const { down, across, blockQueries, blockKeys } = map.stage;
    const most = Math.max(1, ...map.flat);
    const byte = (y, x) => map.triangle ? (x > y ? 0 : map.flat[y * (y + 1) / 2 + x]) : map.flat[y * across + x];
    paint(blocks, across, down, "--accent", (y, x) => byte(y, x) / most);
    paint(blocksFirst, 1, down, "--first", (y) => share(map.firstBlocks[y]));
    at("heads-scale").textContent =
      `Blocks of ${blockQueries} by ${blockKeys} tokens; full colour is ${percent(share(most))} of a block's attention.`;
  }

  function started(target) {
    const ratio = window.devicePixelRatio || 1;
    target.width = Math.round(target.clientWidth * ratio);
    target.height = Math.round(target.clientHeight * ratio);
    return [target.getContext("2d"), target, ratio];
  }

  // Bars at the tokens [token, weight] of a text of `all`, and the share of the first token; the line across the map is at a
  // part of its height, none where `down` is null.
  function drawStrip(tokens, first, all, down) {
    const most = Math.max(...tokens.map(([, weight]) => weight), 1e-9);
    const [drawing, { width, height }, ratio] = started(strip), wide = 3 * ratio;
    drawing.fillStyle = colour("--accent");
    for (const [token, weight] of tokens) {
      drawing.fillRect(Math.min(token / all * width, width - wide), height * (1 - weight / most), wide, height * weight / most);
    }
    const [beside, { height: tall }] = started(stripFirst);
    beside.fillStyle = colour("--first");
    beside.fillRect(0, tall * (1 - first), stripFirst.width, tall * first);
    at("heads-strip-scale").textContent = tokens.length ? `0 to ${percent(most)}` : down === null ? "none" : "none but the first";
    at("heads-last").textContent = counted(all);
    at("heads-row").hidden = down === null;
    if (down !== null) at("heads-row").style.top = `${(down * 100).toFixed(2)}%`;
  }

  return { blocks, drawBlocks, drawStrip };
})();
