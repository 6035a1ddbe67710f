// Long tables can be searched, and sorted by a click on a heading. Without this script they are
// plain tables. Nothing is loaded from elsewhere.
"use strict";

const LONG = 12; // rows from which a table gets a search field

function cellValue(row, column) {
  return (row.cells[column]?.textContent ?? "").trim();
}

// numbers by size, then words by alphabet, then empty cells
function compare(a, b) {
  if (a === "" || b === "") return (a === "") - (b === "");
  const [x, y] = [Number(a.replace(/[,%]/g, "")), Number(b.replace(/[,%]/g, ""))];
  if (!Number.isNaN(x) && !Number.isNaN(y)) return x - y;
  if (Number.isNaN(x) !== Number.isNaN(y)) return Number.isNaN(x) ? 1 : -1;
  return a.localeCompare(b);
}

function sortBy(table, heading, column) {
  const order = heading.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
  const sign = order === "ascending" ? 1 : -1;
  for (const other of heading.parentElement.cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", order);
  const body = table.tBodies[0];
  const rows = Array.from(body.rows);
  rows.sort((a, b) => {
    const [x, y] = [cellValue(a, column), cellValue(b, column)];
    return x === "" || y === "" ? compare(x, y) : sign * compare(x, y);
  });
  body.append(...rows);
}

function addSorting(table) {
  Array.from(table.tHead.rows[0].cells).forEach((heading, column) => {
    if (heading.textContent.trim() === "") return;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => sortBy(table, heading, column));
  });
}

// A row whose first cell is empty belongs to the row above: such a table keeps its order.
function isGrouped(table) {
  return Array.from(table.tBodies[0].rows).some((row) => cellValue(row, 0) === "");
}

// every word must occur somewhere in the row, or in the first cell of its group
function addSearch(table) {
  const rows = Array.from(table.tBodies[0].rows);
  const grouped = rows.map((row) => cellValue(row, 0) === "");
  const groups = [];
  for (const row of rows) groups.push(cellValue(row, 0) || groups.at(-1) || "");
  const line = document.createElement("div");
  const field = document.createElement("input");
  const count = document.createElement("span");
  line.className = "table-search";
  field.type = "search";
  field.placeholder = "Search this table";
  field.setAttribute("aria-label", "Search this table");
  count.setAttribute("aria-live", "polite");
  line.append(field, count);
  (table.closest(".md-typeset__scrollwrap") ?? table).before(line);
  const show = () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const [index, row] of rows.entries()) {
      const text = `${groups[index]} ${row.textContent}`.toLowerCase();
      if (grouped[index]) row.cells[0].textContent = words.length ? groups[index] : "";
      row.hidden = !words.every((word) => text.includes(word));
      shown += !row.hidden;
    }
    count.textContent = `${shown} of ${rows.length} rows`;
  };
  field.addEventListener("input", show);
  show();
}

function enhance() {
  for (const table of document.querySelectorAll("article table")) {
    const rows = table.tBodies[0]?.rows.length ?? 0;
    if (rows < LONG || table.dataset.searchable || !table.tHead) continue;
    table.dataset.searchable = "yes";
    if (!isGrouped(table)) addSorting(table);
    addSearch(table);
  }
}

if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", enhance);
else enhance();
