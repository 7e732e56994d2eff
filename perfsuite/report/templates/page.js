"use strict";
// Tables of class "sortable" are sorted by the buttons of their heads. A form of class "filter" hides rows of the table
// that its data-for names: by text, and by verdict. The state is in the address, as "#metrics.text=adam&metrics.sort=2d".
(() => {
  document.documentElement.classList.add("scripted");
  const collator = new Intl.Collator("en", { numeric: true });
  const tables = new Map();

  function key(row, column) {
    const cell = row.cells[column];
    if (cell === undefined) return null;
    // What comes after the first thing in a cell is there to be read only.
    const text = (cell.firstChild?.textContent ?? "").trim();
    if (text === "") return null;
    const number = Number(text.replace(/,| %$/g, "")); // as "1,183" and "+2.3 %" are shown
    return Number.isNaN(number) ? text : number;
  }

  function compare(a, b) {
    if (typeof a === "number" && typeof b === "number") return a - b;
    return collator.compare(String(a), String(b));
  }

  // What is empty comes last, whichever way.
  function sorted(rows, column, down) {
    const keyed = rows.map((row) => [key(row, column), row]);
    const full = keyed.filter(([value]) => value !== null);
    full.sort(([a], [b]) => (down ? compare(b, a) : compare(a, b)));
    return [...full, ...keyed.filter(([value]) => value === null)].map(([, row]) => row);
  }

  function sortable(table) {
    const body = table.tBodies[0];
    const rows = [...body.rows];
    const heads = [...table.tHead.rows[0].cells];
    const made = { table, rows, sort: null, form: null };
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const now = made.sort;
        if (now === null || now.column !== column) sort(made, { column, down: false });
        else sort(made, now.down ? null : { column, down: true });
        remember();
      });
    });
    if (table.id) tables.set(table.id, made);
  }

  function sort(made, order) {
    const heads = made.table.tHead.rows[0].cells;
    if (order !== null && !(order.column in heads)) order = null;
    made.sort = order;
    [...heads].forEach((head, column) => {
      if (order === null || order.column !== column) head.removeAttribute("aria-sort");
      else head.setAttribute("aria-sort", order.down ? "descending" : "ascending");
    });
    made.table.tBodies[0].append(...(order === null ? made.rows : sorted(made.rows, order.column, order.down)));
  }

  function filterable(form) {
    const made = tables.get(form.dataset.for);
    made.form = form;
    made.texts = new Map(made.rows.map((row) => [row, row.textContent.toLowerCase()]));
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", () => {
      filter(made);
      remember();
    });
    filter(made);
  }

  function chosen(made) {
    const boxes = [...made.form.querySelectorAll("input[type=checkbox]")];
    return boxes.filter((box) => box.checked).map((box) => box.value);
  }

  function filter(made) {
    const words = made.form.querySelector("input[type=search]").value.toLowerCase().split(/\s+/).filter(Boolean);
    const verdicts = chosen(made);
    let shown = 0;
    for (const row of made.rows) {
      const text = made.texts.get(row);
      const wanted = verdicts.length === 0 || verdicts.includes(row.dataset.verdict);
      row.hidden = !(wanted && words.every((word) => text.includes(word)));
      if (!row.hidden) shown += 1;
    }
    const all = made.rows.length;
    made.form.querySelector("output").textContent = shown === all ? `${all} rows` : `${shown} of ${all} rows`;
  }

  // The page may be a file, whose address can be changed in its last part only.
  function remember() {
    const state = new URLSearchParams();
    for (const [id, made] of tables) {
      if (made.sort !== null) state.set(`${id}.sort`, `${made.sort.column}${made.sort.down ? "d" : "a"}`);
      if (made.form === null) continue;
      const text = made.form.querySelector("input[type=search]").value.trim();
      if (text) state.set(`${id}.text`, text);
      if (chosen(made).length) state.set(`${id}.verdict`, chosen(made).join(","));
    }
    history.replaceState(null, "", state.size ? `#${state}` : location.pathname + location.search);
  }

  function recall() {
    const hash = location.hash.slice(1);
    if (!hash.includes("=")) {
      reveal(hash);
      return;
    }
    const state = new URLSearchParams(hash);
    for (const [id, made] of tables) {
      const order = /^(\d+)([ad])$/.exec(state.get(`${id}.sort`) ?? "");
      sort(made, order && { column: Number(order[1]), down: order[2] === "d" });
      if (made.form === null) continue;
      const verdicts = (state.get(`${id}.verdict`) ?? "").split(",");
      for (const box of made.form.querySelectorAll("input[type=checkbox]")) box.checked = verdicts.includes(box.value);
      made.form.querySelector("input[type=search]").value = state.get(`${id}.text`) ?? "";
      filter(made);
    }
    const named = [...tables.keys()].find((id) => hash.startsWith(`${id}.`));
    if (named) reveal(named);
  }

  // A link to something in a closed part of the page opens it.
  function reveal(id) {
    const target = id && document.getElementById(decodeURIComponent(id));
    if (!target) return;
    for (let part = target; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
    (tables.has(id) ? target.closest("section") : target).scrollIntoView();
  }

  document.querySelectorAll("table.sortable").forEach(sortable);
  document.querySelectorAll("form.filter").forEach(filterable);
  addEventListener("hashchange", recall);
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((each) => (each.open = true)));
  if (location.hash) recall();
})();
