"use strict";
(() => {
  const search = document.getElementById("search");
  const found = document.getElementById("found");
  const unfold = document.getElementById("unfold");
  const items = [...document.querySelectorAll(".item")];
  const folds = [...document.querySelectorAll("details")];

  // What is found inside a fold shows: the innermost folds that hold all words open, and with them those around.
  const reveal = (item, words) => {
    const all = [item, ...item.querySelectorAll("details")].filter((fold) => fold instanceof HTMLDetailsElement);
    for (const fold of all) fold.open = words.every((word) => fold.textContent.toLowerCase().includes(word));
  };

  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const item of items) {
      const text = item.textContent.toLowerCase();
      const hit = words.every((word) => text.includes(word));
      item.classList.toggle("hidden", !hit);
      if (hit && words.length) reveal(item, words);
      shown += hit ? 1 : 0;
    }
    found.textContent = words.length ? found.dataset.found.replace("#", shown) : "";
  };
  search.addEventListener("input", filter);

  const openAll = unfold.textContent;
  const open = (yes) => {
    for (const fold of folds) fold.open = yes;
    unfold.textContent = yes ? unfold.dataset.close : openAll;
  };
  unfold.addEventListener("click", () => open(unfold.textContent === openAll));
  addEventListener("beforeprint", () => open(true));

  addEventListener("keydown", (event) => {
    const typing = event.target instanceof HTMLInputElement;
    if (event.key === "/" && !typing) {
      event.preventDefault();
      search.focus();
    } else if (event.key === "Escape" && typing) {
      search.value = "";
      filter();
      search.blur();
    }
  });

  const sort = (table, column, descending) => {
    const value = (row) => {
      const cell = row.cells[column];
      const order = cell.dataset.order ?? cell.textContent.replace(/,/g, "");
      return order !== "" && !Number.isNaN(Number(order)) ? Number(order) : cell.textContent;
    };
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => [value(row), row]);
    rows.sort(([a], [b]) => {
      const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
      return descending ? -order : order;
    });
    body.append(...rows.map(([, row]) => row));
  };
  for (const table of document.querySelectorAll(".sortable")) {
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const descending = head.ariaSort === "ascending";
        for (const other of table.tHead.rows[0].cells) other.ariaSort = null;
        head.ariaSort = descending ? "descending" : "ascending";
        sort(table, column, descending);
      });
    });
  }
})();
