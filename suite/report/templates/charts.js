// Draws the page's figures, each once it comes near the screen, and again when its colours change.
const PRINT_WIDTH = 680;
const NEAR = "600px";
const SWAPPED = new Set(["color", "fillcolor", "colorscale", "bgcolor", "bordercolor", "outlinecolor"]);
const isTouch = window.matchMedia("(pointer: coarse)").matches;
const drawn = new Set();
const hidden = new Map(); // host -> indices of traces its reader has hidden

const plots = () => [...document.querySelectorAll(".plot")];
const isVisible = (host) => !host.closest("details:not([open]), [hidden]");
const figureOf = (host) => JSON.parse(document.getElementById(host.dataset.figure).textContent);

// Figures hold light colours; the same place of the current palette replaces each, wherever one stands.
function swapped(item, swap) {
  if (Array.isArray(item)) return item.map((one) => swapped(one, swap));
  return swap.has(item) ? swap.get(item) : item;
}

function recolour(value, swap) {
  if (Array.isArray(value)) {
    if (value.length && typeof value[0] === "object") value.forEach((item) => item && recolour(item, swap));
    return;
  }
  for (const [key, item] of Object.entries(value)) {
    if (SWAPPED.has(key)) value[key] = swapped(item, swap);
    else if (item && typeof item === "object") recolour(item, swap);
  }
}

function axis(own, palette) {
  const title = own.title ? { ...own.title, standoff: 8, font: { size: 13 } } : undefined;
  return {
    automargin: true, gridcolor: palette.grid, linecolor: palette.axis, zerolinecolor: palette.grid,
    tickcolor: palette.axis, ticks: "outside", ticklen: 4, showline: true, ...own, title,
  };
}

function layoutOf(layout, palette) {
  const result = {
    autosize: true,
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, 'Liberation Sans', sans-serif", size: 13, color: palette.text },
    margin: { l: 12, r: 16, t: 26, b: 12, pad: 2 },
    hoverlabel: { bgcolor: palette.paper, bordercolor: palette.axis, font: { color: palette.text }, namelength: -1 },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: palette.axis, activecolor: palette.text },
    dragmode: isTouch ? false : "zoom",
    showlegend: false,
    ...layout,
  };
  for (const key of Object.keys(layout)) {
    if (/^[xy]axis\d*$/.test(key)) result[key] = axis(layout[key], palette);
  }
  return result;
}

// legend

const SHAPES = {
  circle: '<circle cx="14" cy="8" r="5"/>', square: '<path d="M9 3h10v10H9z"/>', diamond: '<path d="M14 2l6 6-6 6-6-6z"/>',
  "triangle-up": '<path d="M14 2l6 11H8z"/>', "triangle-left": '<path d="M18 2L8 8l10 6z"/>', "triangle-down": '<path d="M14 14l6-11H8z"/>',
  cross: '<path d="M12 3h4v3h3v4h-3v3h-4v-3H9V6h3z"/>',
  x: '<path d="M10 2l4 4 4-4 2 2-4 4 4 4-2 2-4-4-4 4-2-2 4-4-4-4z"/>', "line-ns": '<path d="M14 1v14"/>',
};
const HATCHES = { "/": '<path d="M9 12l9-9"/>', "\\": '<path d="M9 3l9 10"/>', x: '<path d="M9 12l9-9M9 3l9 10"/>', "-": '<path d="M9 8h10"/>', "|": '<path d="M14 3v10"/>', "+": '<path d="M9 8h10M14 3v10"/>', ".": '<circle cx="14" cy="8" r="1"/>' };
const STROKES = { dash: "6 3", dot: "2 2", dashdot: "6 2 2 2", longdash: "9 3", longdashdot: "9 2 2 2" };
const first = (value) => (Array.isArray(value) ? value[0] : value);

function shapeOf(trace) {
  if (trace.mode?.startsWith("lines")) return '<path d="M0 8h28"/>';
  const pattern = HATCHES[first(trace.marker?.pattern?.shape)] || "";
  const symbol = trace.mode ? String(first(trace.marker?.symbol) || "circle").replace("-open", "") : "square";
  return (SHAPES[symbol] || SHAPES.circle) + pattern;
}

function glyph(trace) {
  const isLine = Boolean(trace.mode?.startsWith("lines"));
  const style = (isLine ? trace.line : trace.marker) || {};
  const holder = document.createElement("span");
  holder.innerHTML = `<svg width="28" height="16" aria-hidden="true" fill="none" stroke-width="2">${shapeOf(trace)}</svg>`;
  const colour = first(style.color) || first(trace.line?.color) || trace.colorscale?.[1][1] || colours().text;
  holder.firstChild.setAttribute("stroke", typeof colour === "string" ? colour : colours().text);
  if (!trace.mode && !first(style.pattern?.shape)) {
    holder.firstChild.setAttribute("fill", colour);
    holder.firstChild.setAttribute("fill-opacity", style.opacity ?? 1);
  }
  holder.firstChild.setAttribute("stroke-dasharray", isLine ? STROKES[style.dash] || "none" : "none");
  return holder.firstChild;
}

// One button a name: a click, or a key, hides its traces and brings them back.
function drawLegend(host, traces) {
  const legend = host.previousElementSibling;
  const named = traces.map((trace, index) => [trace, index]).filter(([trace]) => typeof trace.meta === "string");
  legend.hidden = named.length < 2;
  legend.replaceChildren(...named.map(([trace, index]) => {
    const button = document.createElement("button");
    const isShown = !hidden.get(host)?.has(index);
    button.type = "button";
    button.setAttribute("aria-pressed", String(isShown));
    button.append(glyph(trace), document.createTextNode(trace.meta));
    button.addEventListener("click", () => toggle(host, index, button));
    return button;
  }));
}

function toggle(host, index, button) {
  const gone = hidden.get(host) || new Set();
  if (!gone.delete(index)) gone.add(index);
  hidden.set(host, gone);
  button.setAttribute("aria-pressed", String(!gone.has(index)));
  hide(host.data, gone);
  Plotly.redraw(host);
}

// A band, or another trace of the same legendgroup, is hidden with its line.
function hide(traces, indices) {
  const groups = new Set([...indices].map((index) => traces[index].legendgroup).filter(Boolean));
  traces.forEach((trace, index) => { trace.visible = !indices.has(index) && !groups.has(trace.legendgroup); });
}

// drawing

// The library is as long as all the rest, and is compiled when the first chart comes near.
function needPlotly() {
  if (window.Plotly) return;
  const script = document.createElement("script");
  script.textContent = document.getElementById("plotly").textContent;
  document.head.append(script);
}

function dressed(host) {
  const figure = paired(host, figureOf(host));
  const palette = colours();
  const swap = new Map(themes.light.palette.map((colour, index) => [colour, palette.palette[index]]));
  recolour(figure, swap);
  hide(figure.data, hidden.get(host) || new Set());
  return { data: figure.data, layout: layoutOf(figure.layout, palette) };
}

function draw(host) {
  needPlotly();
  const { data, layout } = dressed(host);
  drawLegend(host, data);
  if (isPrinting) Object.assign(layout, { autosize: false, width: PRINT_WIDTH });
  drawn.add(host);
  return Plotly.react(host, data, layout, {
    responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
  });
}

// One chart that cannot be drawn leaves the others alone; the console has the cause.
async function drawOrTell(host) {
  try {
    await draw(host);
  } catch (error) {
    console.error(`${host.dataset.name}: ${error}`);
  }
}

// What is folded away is drawn when it is unfolded, in the colours of then.
function redraw() {
  for (const host of [...drawn]) {
    if (isVisible(host)) draw(host);
    else forget(host);
  }
}

function forget(host) {
  drawn.delete(host);
  nearby.unobserve(host);
  nearby.observe(host);
}

const queue = [];
let isDrawing = false;

// One figure a turn, so that the page answers while a long one is drawn.
async function drawQueue() {
  if (isDrawing) return;
  isDrawing = true;
  await new Promise((resolve) => setTimeout(resolve, 0));
  while (queue.length) {
    const host = queue.shift();
    if (!drawn.has(host) && isVisible(host)) await drawOrTell(host);
    await new Promise((resolve) => setTimeout(resolve, 0));
  }
  isDrawing = false;
  document.documentElement.dataset.drawn = String(drawn.size);
}

const nearby = new IntersectionObserver((entries) => {
  entries.filter((entry) => entry.isIntersecting && !drawn.has(entry.target)).forEach((entry) => queue.push(entry.target));
  drawQueue();
}, { rootMargin: NEAR });

// On paper everything is unfolded and drawn, of a sweep the cases chosen; afterwards the page is as it was.
let unfolded = [];

function startPrinting() {
  isPrinting = true;
  unfolded = [...document.querySelectorAll("details:not([open])")].filter((details) => !details.closest("[hidden]"));
  unfolded.forEach((details) => { details.open = true; });
  plots().filter(isVisible).forEach(draw);
}

function endPrinting() {
  isPrinting = false;
  unfolded.forEach((details) => { details.open = false; });
  redraw();
}

function startCharts() {
  plots().forEach((host) => nearby.observe(host));
  window.addEventListener("beforeprint", startPrinting);
  window.addEventListener("afterprint", endPrinting);
  if (!plots().length) drawQueue();
}
