"use strict";
// Tables of more than a few rows: a heading sorts by its column, a field above leaves the rows that hold its words.
(() => {
  const LEAST_ROWS = 8, LEAST_TO_FILTER = 16;
  const UNITS = {
    B: 1, KB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40,
    us: 1e-6, "µs": 1e-6, ms: 1e-3, s: 1, min: 60, h: 3600,
  };
  const NUMBER = /^[<>~±\s]*([+\-−]?(?:\d[\d,]*)?\.?\d+(?:e[+\-]?\d+)?)\s*(\S*)/i;

  // What a text is worth as a number, NaN for none: "1,234", "+0.02", "12.3%", "1.25 GiB", "3 of 270".
  function worth(text) {
    const found = NUMBER.exec(text.trim());
    if (!found) return NaN;
    return Number(found[1].replaceAll(",", "").replace("−", "-")) * (UNITS[found[2]] || 1);
  }

  function compare(a, b, numbers) {
    if (!numbers) return a.localeCompare(b, "en", { numeric: true });
    const [x, y] = [worth(a), worth(b)];
    return x - y;
  }

  function sortable(table) {
    const body = table.tBodies[0], original = [...body.rows];
    const headings = [...table.tHead.rows[0].cells];
    headings.forEach((heading, column) => {
      const numbers = heading.classList.contains("right");
      const button = document.createElement("button");
      button.type = "button";
      button.append(...heading.childNodes);
      heading.append(button);
      heading.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => {
        const first = numbers ? "descending" : "ascending", second = numbers ? "ascending" : "descending";
        const next = { none: first, [first]: second, [second]: "none" }[heading.getAttribute("aria-sort")];
        for (const other of headings) other.setAttribute("aria-sort", "none");
        heading.setAttribute("aria-sort", next);
        const text = (row) => row.cells[column].textContent.trim();
        const missing = (row) => numbers ? Number.isNaN(worth(text(row))) : !text(row);
        const sign = next === "descending" ? -1 : 1;
        const rows = next === "none" ? original : [...original].sort((a, b) =>
          missing(a) - missing(b) || (missing(a) ? 0 : sign * compare(text(a), text(b), numbers)));
        body.append(...rows);
      });
    });
  }

  function filterable(table) {
    const rows = [...table.tBodies[0].rows], frame = table.parentElement;
    const line = document.createElement("p"), field = document.createElement("input"), said = document.createElement("span");
    line.className = "filter";
    field.type = "search";
    field.placeholder = "filter the rows";
    field.setAttribute("aria-label", `filter the rows of: ${table.caption.textContent}`);
    said.setAttribute("aria-live", "polite");
    line.append(field, " ", said);
    frame.before(line);
    field.addEventListener("input", () => {
      const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
      let left = 0;
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
        left += !row.hidden;
      }
      said.textContent = words.length ? `${left} of ${rows.length} rows` : "";
    });
  }

  for (const table of document.querySelectorAll("main .scroll table")) {
    const rows = table.tBodies[0].rows.length;
    if (rows >= LEAST_ROWS) sortable(table);
    if (rows >= LEAST_TO_FILTER) filterable(table);
  }
})();
