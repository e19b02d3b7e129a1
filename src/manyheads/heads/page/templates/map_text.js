"use strict";
// The text that a map is shown on: its tokens, those that are lit, and the margin that marks where in the text they are.
const headText = (() => {
  const at = (id) => document.getElementById(id), { told, made, printed, counted } = headMaps;
  const boxes = { queries: at("heads-queries"), keys: at("heads-keys") };
  let stage = null, lit = [], sought = null;

  const same = () => stage.queries === stage.keys;
  const keyBox = () => same() ? boxes.queries : boxes.keys;
  const boxOf = (side) => side === "queries" ? boxes.queries : keyBox();
  const textsOf = (side) => told.texts[stage[side]];
  const spanOf = (side, token) => boxOf(side).children[token];

  // The texts of another stage of the model.
  function show(next) {
    if (stage === next) return;
    stage = next;
    fill("queries", new Map(stage.rows.map((t, r) => [t, r])));
    sayWhich();
    at("heads-of-keys").hidden = same();
    if (!same()) fill("keys", new Map());
  }

  function fill(side, rows) {
    boxes[side].replaceChildren(...textsOf(side).map((text, t) => {
      const span = document.createElement("span");
      span.textContent = printed(text);
      span.dataset.token = t;
      if (rows.has(t)) { span.className = "row"; span.dataset.row = rows.get(t); }
      return span;
    }));
    boxes[side].scrollTop = 0;
  }

  // Stretches of neighbours among the rows, as [first row, last row].
  function passages() {
    const found = [];
    stage.rows.forEach((t, r) => {
      if (r && stage.rows[r - 1] === t - 1) found[found.length - 1][1] = r;
      else found.push([r, r]);
    });
    return found;
  }

  function sayWhich() {
    const rows = stage.rows.length, all = textsOf("queries").length;
    at("heads-which").textContent = rows === all
      ? "Every token can be pointed at."
      : `${counted(rows)} of the ${counted(all)} tokens can be pointed at, those in dark ink, in ${passages().length} passages from the start to the end.`;
  }

  function light(span, kind, weight) {
    if (!span) return;
    span.classList.add(kind);
    span.style.setProperty("--weight", weight.toFixed(3));
    lit.push([span, kind, weight]);
  }

  function darken() {
    for (const [span, kind] of lit) span.classList.remove(kind);
    lit = [];
  }

  // Which passages can be pointed at, what is seen now, where the chosen token and its keys are.
  function mark(side) {
    const box = boxes[side], spans = box.children, height = box.scrollHeight || 1, marks = [];
    const add = (kind, start, end, weight) => {
      const one = made("i", kind);
      one.style.cssText = `top: ${start / height * 100}%; height: ${(end - start) / height * 100}%; --weight: ${weight.toFixed(3)}`;
      marks.push(one);
    };
    const over = (kind, from, to, weight) => add(kind, from.offsetTop, to.offsetTop + to.offsetHeight, weight);
    add("seen", box.scrollTop, box.scrollTop + box.clientHeight, 1);
    if (side === "queries") for (const [a, b] of passages()) over("row", spans[stage.rows[a]], spans[stage.rows[b]], 1);
    for (const [span, kind, weight] of lit) if (span.parentNode === box) over(kind, span, span, weight);
    at(`heads-${side}-marks`).replaceChildren(...marks);
  }

  function markAll() {
    mark("queries");
    if (!same()) mark("keys");
  }

  function centre(side, token) {
    const box = boxOf(side), span = box.children[token];
    if (span.offsetTop < box.scrollTop || span.offsetTop + span.offsetHeight > box.scrollTop + box.clientHeight) {
      box.scrollTop = span.offsetTop - box.clientHeight / 2;
    }
  }

  const forget = () => { if (sought) sought.classList.remove("found"); };

  function seek(side, token) {
    forget();
    sought = spanOf(side, token);
    sought.classList.add("found");
    centre(side, token);
    boxOf(side).scrollIntoView({ block: "nearest" });
  }

  for (const side of ["queries", "keys"]) {
    const box = boxes[side], marks = at(`heads-${side}-marks`);
    box.addEventListener("scroll", () => mark(side), { passive: true });
    marks.addEventListener("click", (event) => {
      const part = (event.clientY - marks.getBoundingClientRect().top) / marks.clientHeight;
      box.scrollTop = part * box.scrollHeight - box.clientHeight / 2;
    });
  }

  return { boxes, same, keyBox, textsOf, spanOf, show, light, darken, markAll, centre, seek, forget };
})();
