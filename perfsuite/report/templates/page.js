"use strict";
// The heads of the table of metrics sort it, and the form above it hides rows: by text, and by verdict.
(() => {
  document.documentElement.classList.add("scripted");

  // A link to something in a closed part of the page opens it.
  function reveal() {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let part = target; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
    target?.scrollIntoView();
  }
  addEventListener("hashchange", reveal);
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((each) => (each.open = true)));
  reveal();

  const table = document.getElementById("metrics");
  if (table === null) return;
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];
  const collator = new Intl.Collator("en", { numeric: true });

  // A row is sorted by the first thing in a cell: a number as "1,183" and "+2.3 %" are shown, or a text.
  function key(row, column) {
    const text = (row.cells[column].firstChild?.textContent ?? "").trim();
    const number = Number(text.replace(/,| %$/g, ""));
    return text === "" ? null : Number.isNaN(number) ? text : number;
  }

  function compare(a, b) {
    if (typeof a === "number" && typeof b === "number") return a - b;
    return collator.compare(String(a), String(b));
  }

  // What is empty comes last, whichever way.
  function sorted(column, down) {
    const keyed = rows.map((row) => [key(row, column), row]);
    const full = keyed.filter(([value]) => value !== null);
    full.sort(([a], [b]) => (down ? compare(b, a) : compare(a, b)));
    return [...full, ...keyed.filter(([value]) => value === null)].map(([, row]) => row);
  }

  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const next = { null: "ascending", ascending: "descending", descending: null }[head.getAttribute("aria-sort")];
      heads.forEach((each) => each.removeAttribute("aria-sort"));
      if (next) head.setAttribute("aria-sort", next);
      body.append(...(next ? sorted(column, next === "descending") : rows));
    });
  });

  const form = document.querySelector("form");
  const texts = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));

  function filter() {
    const words = form.querySelector("input[type=search]").value.toLowerCase().split(/\s+/).filter(Boolean);
    const verdicts = [...form.querySelectorAll("input:checked")].map((box) => box.value);
    for (const row of rows) {
      const wanted = verdicts.length === 0 || verdicts.includes(row.dataset.verdict);
      row.hidden = !(wanted && words.every((word) => texts.get(row).includes(word)));
    }
    const shown = rows.filter((row) => !row.hidden).length;
    form.querySelector("output").textContent = `${shown} of ${rows.length} rows`;
  }

  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", filter);
  filter();
})();
