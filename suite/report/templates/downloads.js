// Every chart as CSV and PNG, every table as CSV, from what the page holds.
const DATA = ["x", "y", "z", "base", "lowerfence", "q1", "median", "q3", "upperfence", "measure", "text", "hovertext", "customdata"];
const TYPED = {
  f8: Float64Array, f4: Float32Array, i1: Int8Array, u1: Uint8Array, i2: Int16Array, u2: Uint16Array, i4: Int32Array, u4: Uint32Array,
};
let numFiles = 0;

// A column of a figure: a list, or plotly's base64 of a typed array with its shape.
function listOf(value) {
  if (!value || Array.isArray(value) || typeof value.bdata !== "string") return value;
  const bytes = Uint8Array.from(atob(value.bdata), (character) => character.charCodeAt(0));
  const flat = [...new TYPED[value.dtype](bytes.buffer)];
  const [, width] = String(value.shape || "").split(",").map(Number);
  if (!width) return flat;
  return Array.from({ length: flat.length / width }, (_, row) => flat.slice(row * width, (row + 1) * width));
}

const plain = (text) => String(text).replace(/<br>/g, " ").replace(/&lt;/g, "<").replace(/&gt;/g, ">").replace(/&amp;/g, "&");
const shown = (value) => (value === null || value === undefined ? "" : typeof value === "string" ? plain(value) : Array.isArray(value) ? value.map(shown).join(" ") : value);

function quoted(value) {
  const text = String(value ?? "");
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

const csv = (rows) => rows.map((row) => row.map(quoted).join(",")).join("\r\n") + "\r\n";

// A heat map's cells, or a trace's points: a row each.
function rowsOf(trace, names) {
  const columns = Object.fromEntries(names.map((name) => [name, listOf(trace[name])]));
  if (Array.isArray(columns.z?.[0])) {
    return columns.z.flatMap((line, row) => line.map((value, column) => names.map((name) => shown(
      name === "z" ? value : name === "x" ? columns.x?.[column] ?? column : name === "y" ? columns.y?.[row] ?? row : columns[name]?.[row]?.[column],
    ))));
  }
  const length = Math.max(0, ...names.map((name) => (Array.isArray(columns[name]) ? columns[name].length : 0)));
  return Array.from({ length }, (_, index) => names.map((name) => shown(Array.isArray(columns[name]) ? columns[name][index] : "")));
}

function titleOf(layout, trace, name) {
  if (name !== "x" && name !== "y") return name;
  const reference = trace?.[`${name}axis`] || name;
  const title = layout[`${name}axis${reference.slice(1)}`]?.title?.text;
  return title ? `${name}: ${plain(title)}` : name;
}

function chartRows(host) {
  const figure = figureOf(host);
  const names = DATA.filter((name) => figure.data.some((trace) => Array.isArray(listOf(trace[name]))));
  const heads = ["trace", ...names.map((name) => titleOf(figure.layout, figure.data[0], name))];
  return [heads, ...figure.data.flatMap((trace, index) => rowsOf(trace, names).map((row) => [armOf(figure, index) + (typeof trace.meta === "string" ? trace.meta : plain(trace.name || "")), ...row]))];
}

// A column for each line of a cell, exact where the page rounds, and one for its notes.
function tableRows(table) {
  const heads = [];
  const columns = [...table.tHead.rows[0].cells].map((heading, index) => {
    const cells = [...table.tBodies[0].rows].map((row) => [...row.cells[index].querySelectorAll(".line")].map(lineOf));
    const width = Math.max(1, ...cells.map((lines) => lines.length));
    const hasNotes = cells.some((lines) => lines.some(([, note]) => note));
    const name = heading.textContent.trim();
    heads.push(...Array.from({ length: width }, (_, place) => (place ? `${name} (${place + 1})` : name)), ...(hasNotes ? [`${name}: notes`] : []));
    return cells.map((lines) => [
      ...Array.from({ length: width }, (_, place) => lines[place]?.[0] ?? ""),
      ...(hasNotes ? [lines.map(([, note]) => note).filter(Boolean).join("; ")] : []),
    ]);
  });
  return [heads, ...[...table.tBodies[0].rows].map((_, row) => columns.flatMap((cells) => cells[row]))];
}

function lineOf(line) {
  const exact = line.querySelector("data");
  const note = line.querySelector("small");
  const text = exact ? exact.textContent : [...line.childNodes].filter((node) => node !== note).map((node) => node.textContent).join("");
  const isPlain = exact && /^[-\d.,e+]+(\u00a0.*)?$/.test(text.trim());
  return [isPlain ? exact.value : text.trim(), note ? note.textContent.trim() : ""];
}

function save(url, name, kind) {
  const link = document.createElement("a");
  link.href = url;
  link.download = `${fileName(name)}.${kind}`;
  link.click();
}

// Safe on every system; a number keeps two of the same letters apart.
function fileName(name) {
  numFiles += 1;
  return `stepcost-${numFiles}-${name.toLowerCase().replace(/[^a-z0-9]+/g, "-").slice(0, 60).replace(/^-|-$/g, "") || "data"}`;
}

function saveText(rows, name) {
  const url = URL.createObjectURL(new Blob(["\ufeff", csv(rows)], { type: "text/csv;charset=utf-8" }));
  save(url, name, "csv");
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

async function savePicture(host) {
  needPlotly();
  const { data, layout } = dressed(host);
  const size = { width: host.clientWidth, height: layout.height || host.clientHeight };
  Object.assign(layout, { paper_bgcolor: colours().paper, autosize: false, ...size });
  save(await Plotly.toImage({ data, layout }, { format: "png", scale: 2, ...size }), host.dataset.name, "png");
}

function saver(text, what, act) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "save";
  button.textContent = text;
  button.setAttribute("aria-label", `Save ${what} as ${text}`);
  button.addEventListener("click", act);
  return button;
}

function saversBefore(element, buttons) {
  const group = document.createElement("div");
  group.className = "savers";
  group.append(...buttons);
  element.before(group);
}

function startDownloads() {
  plots().forEach((host) => {
    const name = host.dataset.name;
    saversBefore(host.previousElementSibling, [
      saver("CSV", `the data of ${name}`, () => saveText(chartRows(host), name)),
      saver("PNG", `the chart ${name}`, () => savePicture(host)),
    ]);
  });
  document.querySelectorAll("table").forEach((table) => {
    const name = table.dataset.name;
    saversBefore(table.parentElement, [saver("CSV", `the table ${name}`, () => saveText(tableRows(table), name))]);
  });
}
