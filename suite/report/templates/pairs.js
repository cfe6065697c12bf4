// A figure that holds many arms shows two of them: its reader chooses which lies above and which below.
const pairs = new Map(); // host -> indices of the two
const literal = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

// The figure as it is drawn: the traces of the upper arm and of the lower; as it is where it has no pair.
function paired(host, figure) {
  const pair = figure.layout.meta?.pair;
  if (!pair) return figure;
  if (!pairs.has(host)) {
    pairs.set(host, [...pair.chosen]);
    drawSelects(host, pair.options);
  }
  const [upper, lower] = pairs.get(host).map((index) => pair.options[index]);
  const of = (option, more) => option.traces.map((index) => ({ ...structuredClone(figure.data[index]), ...more }));
  [upper, lower].forEach((option, index) => { figure.layout.annotations[index].text = `<b>${literal(option.label)}</b>`; });
  return { ...figure, data: [...of(upper, { yaxis: "y" }), ...of(lower, { yaxis: "y2", meta: undefined })] };
}

// The arm a trace is of, as the start of its name in a file.
function armOf(figure, index) {
  const option = figure.layout.meta?.pair?.options.find((one) => one.traces.includes(index));
  return option ? `${option.label}: ` : "";
}

function drawSelects(host, options) {
  const row = document.createElement("div");
  row.className = "pair";
  row.append(...["Above:", "Below:"].map((place, which) => {
    const label = document.createElement("label");
    const select = document.createElement("select");
    select.append(...options.map((option, index) => new Option(option.label, index)));
    select.value = pairs.get(host)[which];
    select.addEventListener("change", () => {
      pairs.get(host)[which] = Number(select.value);
      draw(host);
    });
    label.append(`${place} `, select);
    return label;
  }));
  host.previousElementSibling.before(row);
}
