"use strict";
(() => {
  const search = document.getElementById("search");
  const found = document.getElementById("found");
  const unfold = document.getElementById("unfold");
  const items = [...document.querySelectorAll(".item")];
  const folds = [...document.querySelectorAll("details")];

  // Names that are too many to show are searched all the same.
  const textOf = (element) => {
    const more = [element, ...element.querySelectorAll("[data-names]")].map((e) => e.dataset.names ?? "");
    return [element.textContent, ...more].join(" ").toLowerCase();
  };

  // What is found inside a fold shows: the innermost folds that hold all words open, and with them those around.
  const reveal = (item, words) => {
    const all = [item, ...item.querySelectorAll("details")].filter((fold) => fold instanceof HTMLDetailsElement);
    for (const fold of all) fold.open = words.every((word) => textOf(fold).includes(word));
  };

  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const item of items) {
      const text = textOf(item);
      const hit = words.every((word) => text.includes(word));
      item.classList.toggle("hidden", !hit);
      if (hit && words.length) reveal(item, words);
      shown += hit ? 1 : 0;
    }
    for (const fold of folds) if (words.length && fold.querySelector(".item:not(.hidden)")) fold.open = true;
    found.textContent = words.length ? found.dataset.found.replace("#", shown) : "";
  };
  search.addEventListener("input", filter);

  const openAll = unfold.textContent;
  const open = (yes) => {
    for (const fold of folds) fold.open = yes;
    unfold.textContent = yes ? unfold.dataset.close : openAll;
  };
  unfold.addEventListener("click", () => open(unfold.textContent === openAll));

  // Paper shows the layers and figures of an overview; a kernel in full where it is open.
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll(".layer:not([open]), .figures:not([open])")];
    for (const fold of opened) fold.open = true;
  });
  addEventListener("afterprint", () => {
    for (const fold of opened) fold.open = false;
  });

  // A link to a rule or a code opens its page.
  const follow = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!(target instanceof HTMLDetailsElement)) return;
    for (let fold = target; fold; fold = fold.parentElement?.closest("details")) fold.open = true;
    target.scrollIntoView();
  };
  addEventListener("hashchange", follow);
  follow();

  // Where a figure comes from stands once in the page, and shows wherever one hovers.
  for (const origin of document.querySelectorAll("[data-origin]")) {
    for (const figure of document.querySelectorAll(`[data-figure="${CSS.escape(origin.dataset.origin)}"]`)) {
      figure.title = origin.textContent;
    }
  }

  const step = (by) => {
    const seen = [...document.querySelectorAll("summary")].filter((summary) => summary.getClientRects().length);
    const at = seen.indexOf(document.activeElement);
    seen[at < 0 ? (by > 0 ? 0 : seen.length - 1) : (at + by + seen.length) % seen.length]?.focus();
  };

  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target instanceof HTMLInputElement;
    if (event.key === "/" && !typing) {
      event.preventDefault();
      search.focus();
    } else if (event.key === "Escape" && typing) {
      search.value = "";
      filter();
      search.blur();
    } else if (!typing && (event.key === "j" || event.key === "k")) {
      step(event.key === "j" ? 1 : -1);
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
