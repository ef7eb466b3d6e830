// Sort and filter the table of all submissions. Without this script, it is a plain table by name.
"use strict";
(() => {
  const table = document.getElementById("all");
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];
  const words = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

  const value = (row, column) => {
    const cell = row.cells[column];
    return "value" in cell.dataset ? cell.dataset.value : cell.textContent.trim();
  };
  const sort = (column) => {
    const head = heads[column];
    const up = head.getAttribute("aria-sort") !== "ascending";
    const numeric = head.classList.contains("number");
    const keys = new Map(rows.map((row) => [row, value(row, column)]));
    const order = (a, b) => {
      const [one, other] = [keys.get(a), keys.get(b)];
      if (one === "" || other === "") return (one === "") - (other === "");  // empty ones last
      const by = numeric ? one - other : words.compare(one, other);
      return up ? by : -by;
    };
    rows.sort(order);
    body.append(...rows);
    for (const each of heads) each.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
  };
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sort(column));
    head.append(button);
  });
  heads[0].setAttribute("aria-sort", "ascending");

  const form = document.getElementById("filter");
  const texts = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
  const filter = () => {
    const wanted = form.elements.words.value.toLowerCase().split(/\s+/);
    const state = form.elements.state.value;
    let shown = 0;
    for (const row of rows) {
      const text = texts.get(row);
      row.hidden = !(
        wanted.every((word) => text.includes(word)) && (!state || row.dataset.state === state)
      );
      shown += !row.hidden;
    }
    form.elements.shown.value = `${shown} of ${rows.length} shown`;
  };
  form.hidden = false;
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", filter);
  form.addEventListener("reset", () => setTimeout(filter));
  filter();
})();
