"use strict";
(() => {
  const cellOf = (target) => target.closest ? target.closest("rect[data-head]") : null;

  // A head under a finger has no tooltip: what is known of it stands in a line under its grid.
  function say(figure, cell) {
    const line = figure.querySelector(".heads-said"), view = document.getElementById("heads-view");
    const [name, ...rest] = cell.textContent.split(": ");
    const strong = Object.assign(document.createElement("strong"), { textContent: name });
    line.replaceChildren(strong, rest.length ? `: ${rest.join(": ")}` : ": nothing more is known of it");
    if (view) line.append(" ", Object.assign(document.createElement("a"), { href: "#heads-view", textContent: "Where it looks" }));
  }

  // One entry of the legend at a time shows its heads alone.
  function filter(figure) {
    const cells = [...figure.querySelectorAll("rect[data-role][data-head]")], buttons = [];
    for (const entry of figure.querySelectorAll(".heads-key li")) {
      const button = Object.assign(document.createElement("button"), { type: "button", title: "show only these" });
      button.append(...entry.childNodes);
      button.setAttribute("aria-pressed", "false");
      entry.append(button);
      buttons.push(button);
      button.addEventListener("click", () => {
        const pressed = button.getAttribute("aria-pressed") === "false";
        for (const other of buttons) other.setAttribute("aria-pressed", String(pressed && other === button));
        for (const cell of cells) cell.classList.toggle("faded", pressed && cell.dataset.role !== entry.dataset.role);
      });
    }
  }

  function walk(figure) {
    const drawing = figure.querySelector("svg"), cells = [...drawing.querySelectorAll("rect[data-head]")];
    const at = new Map(cells.map((cell) => [`${cell.getAttribute("x")} ${cell.getAttribute("y")}`, cell]));
    const step = Number(cells[0].getAttribute("width")) + 2;
    let current = cells[0];
    drawing.setAttribute("tabindex", "0");
    drawing.setAttribute("role", "application");
    drawing.setAttribute("aria-label", `${drawing.getAttribute("aria-label")}; arrow keys walk over the heads, Enter opens one`);
    drawing.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        current.dispatchEvent(new MouseEvent("click", { bubbles: true }));
      } else if (move) {
        event.preventDefault();
        const [x, y] = ["x", "y"].map((name, n) => Number(current.getAttribute(name)) + step * move[n]);
        point(at.get(`${x} ${y}`) || current);
      }
    });
    function point(cell) {
      current.classList.remove("pointed");
      current = cell;
      current.classList.add("pointed");
      current.scrollIntoView({ block: "nearest", inline: "nearest" });
      say(figure, current);
    }
    drawing.addEventListener("blur", () => current.classList.remove("pointed"));
    for (const kind of ["pointerover", "click"]) {
      drawing.addEventListener(kind, (event) => {
        const cell = cellOf(event.target);
        if (cell) { current = cell; say(figure, cell); }
      });
    }
    document.addEventListener("head", (event) => {
      const cell = cells.find((one) => one.dataset.head === event.detail);
      if (cell) { current = cell; say(figure, cell); }
    });
  }

  for (const figure of document.querySelectorAll(".heads-grid")) {
    const line = figure.querySelector(".heads-said");
    line.textContent = "Point at a head, or tap it, or walk with the arrow keys: what is known of it stands here.";
    line.setAttribute("aria-live", "polite");
    line.hidden = false;
    filter(figure);
    walk(figure);
  }
})();
