// Tables sort by the column whose heading is pressed: numbers by their exact value, "n/a" always last.
const isAbsent = (text) => text === "" || text.startsWith("n/a");

// Without the hint under a name.
const wordsOf = (cell) => [...cell.querySelectorAll(".line")].map((line) => line.textContent.trim()).join(" ");

function sortKey(cell) {
  if (!cell) return null;
  const given = cell.dataset.sort ?? cell.querySelector(".line data")?.value;
  if (given !== undefined && cell.dataset.sort === undefined && !cell.classList.contains("number")) {
    return wordsOf(cell);
  }
  if (given !== undefined) return Number(given);
  const text = wordsOf(cell);
  return isAbsent(text) ? null : text;
}

function compared(one, other) {
  if (typeof one === "number" && typeof other === "number") return one - other;
  if (typeof one === "number") return -1;
  if (typeof other === "number") return 1;
  return one.localeCompare(other, undefined, { numeric: true });
}

function sortBy(table, heading, column) {
  const isUp = heading.getAttribute("aria-sort") !== "ascending";
  table.querySelectorAll("th[aria-sort]").forEach((other) => other.setAttribute("aria-sort", "none"));
  heading.setAttribute("aria-sort", isUp ? "ascending" : "descending");
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => [sortKey(row.cells[column]), row]);
  const known = rows.filter(([key]) => key !== null);
  known.sort(([one], [other]) => (isUp ? compared(one, other) : compared(other, one)));
  body.append(...known.map(([, row]) => row), ...rows.filter(([key]) => key === null).map(([, row]) => row));
}

function startTables() {
  document.querySelectorAll("table").forEach((table) => {
    if (table.tBodies[0].rows.length < 2) return;
    [...table.tHead.rows[0].cells].forEach((heading, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.append(...heading.childNodes);
      heading.append(button);
      heading.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => sortBy(table, heading, column));
    });
  });
}
