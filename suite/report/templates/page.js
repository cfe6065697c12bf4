"use strict";
// Draws the page's figures with the colours of the reader's screen, and again when these change.
(() => {
  const themes = JSON.parse(document.getElementById("theme").textContent);
  const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");
  const isTouch = window.matchMedia("(pointer: coarse)").matches;
  const PRINT_WIDTH = 680;
  const drawn = new Set();
  const pairs = new Map(); // host -> which two arms its reader has chosen
  const hidden = new Map(); // host -> indices of traces its reader has hidden
  let isPrinting = false;

  const theme = () => themes[prefersDark.matches && !isPrinting ? "dark" : "light"];

  // Figures hold light colours; the same place of the current palette replaces each.
  function recolour(value, swap) {
    if (Array.isArray(value)) return;
    for (const [key, item] of Object.entries(value)) {
      if ((key === "color" || key === "fillcolor") && swap.has(item)) value[key] = swap.get(item);
      else if (item && typeof item === "object") recolour(item, swap);
    }
  }

  function axis(own, colours) {
    const title = own.title ? { ...own.title, standoff: 8, font: { size: 13 } } : undefined;
    return {
      automargin: true, gridcolor: colours.grid, linecolor: colours.axis, zerolinecolor: colours.grid,
      tickcolor: colours.axis, ticks: "outside", ticklen: 4, showline: true, ...own, title,
    };
  }

  function layoutOf(layout, colours) {
    const result = {
      autosize: true,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, 'Liberation Sans', sans-serif", size: 13, color: colours.text },
      margin: { l: 12, r: 16, t: 26, b: 12, pad: 2 },
      hoverlabel: { bgcolor: colours.paper, bordercolor: colours.axis, font: { color: colours.text }, namelength: -1 },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colours.axis, activecolor: colours.text },
      dragmode: isTouch ? false : "zoom",
      showlegend: false,
      ...layout,
    };
    for (const key of Object.keys(layout)) {
      if (/^[xy]axis\d*$/.test(key)) result[key] = axis(layout[key], colours);
    }
    return result;
  }

  const SHAPES = {
    circle: '<circle cx="14" cy="8" r="5"/>', square: '<path d="M9 3h10v10H9z"/>', diamond: '<path d="M14 2l6 6-6 6-6-6z"/>',
    "triangle-up": '<path d="M14 2l6 11H8z"/>', cross: '<path d="M12 3h4v3h3v4h-3v3h-4v-3H9V6h3z"/>',
    x: '<path d="M10 2l4 4 4-4 2 2-4 4 4 4-2 2-4-4-4 4-2-2 4-4-4-4z"/>', "triangle-left": '<path d="M18 2L8 8l10 6z"/>', "line-ns": '<path d="M14 1v14"/>',
  };
  const STROKES = { dash: "6 3", dot: "2 2", dashdot: "6 2 2 2", longdash: "9 3", longdashdot: "9 2 2 2" };

  const HATCHES = { "/": "M3 13L13 3M13 13l8-8", ".": "M9 6h2M15 6h2M12 10h2", x: "M8 4l8 8M16 4l-8 8M16 4l4 4", "-": "M6 6h16M6 10h16", "|": "M10 3v10M16 3v10", "\\": "M7 3l10 10M15 3l6 6" };

  // A filled area: its colour, and its pattern in the colour of the paper.
  function swatch(trace) {
    const colour = trace.marker?.color || trace.colorscale[1][1];
    const hatch = HATCHES[trace.marker?.pattern?.shape];
    const holder = document.createElement("span");
    holder.innerHTML = '<svg width="28" height="16" aria-hidden="true" stroke-width="1.5"><path d="M6 3h16v10H6z"/></svg>';
    holder.firstChild.firstChild.setAttribute("fill", colour);
    holder.firstChild.setAttribute("stroke", colour);
    holder.firstChild.firstChild.setAttribute("fill-opacity", trace.marker?.opacity ?? 1);
    if (hatch) {
      holder.firstChild.firstChild.setAttribute("fill-opacity", "0.15");
      holder.firstChild.insertAdjacentHTML("beforeend", `<path fill="none" d="${hatch}"/>`);
    }
    return holder.firstChild;
  }

  function glyph(trace) {
    if (!trace.mode) return swatch(trace);
    const isLine = trace.mode.startsWith("lines");
    const style = isLine ? trace.line : trace.marker;
    const shape = isLine ? '<path d="M0 8h28"/>' : SHAPES[style.symbol.replace("-open", "")];
    const dash = isLine ? STROKES[style.dash] || "none" : "none";
    const holder = document.createElement("span");
    holder.innerHTML = `<svg width="28" height="16" aria-hidden="true" fill="none" stroke-width="2">${shape}</svg>`;
    holder.firstChild.setAttribute("stroke", style.color);
    holder.firstChild.setAttribute("stroke-dasharray", dash);
    return holder.firstChild;
  }

  // A figure of many arms shows two of them: its readers choose which lies above and which below.
  function choosePair(host, figure) {
    const pair = figure.layout.meta?.pair;
    if (!pair) return figure;
    const chosen = pairs.get(host) || pair.chosen;
    if (!pairs.has(host)) drawSelects(host, pair);
    pairs.set(host, chosen);
    const [upper, lower] = chosen.map((index) => pair.options[index]);
    const of = (option, more) => option.traces.map((index) => ({ ...structuredClone(figure.data[index]), visible: true, ...more }));
    [upper, lower].forEach((option, index) => { figure.layout.annotations[index].text = `<b>${escaped(option.label)}</b>`; });
    return { ...figure, data: [...of(upper, { yaxis: "y" }), ...of(lower, { yaxis: "y2", meta: undefined })] };
  }

  const escaped = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

  function drawSelects(host, pair) {
    const row = document.createElement("div");
    row.className = "pair";
    ["above", "below"].forEach((place, index) => {
      const label = document.createElement("label");
      const select = document.createElement("select");
      select.append(...pair.options.map((option, value) => new Option(option.label, value, false, value === pair.chosen[index])));
      select.addEventListener("change", () => {
        pairs.get(host)[index] = Number(select.value);
        draw(host);
      });
      label.append(`${place} `, select);
      row.append(label);
    });
    host.previousElementSibling.before(row);
  }

  // One button a trace: a click, or a key, hides its curve and brings it back.
  function drawLegend(host, traces) {
    const legend = host.previousElementSibling;
    const named = traces.map((trace, index) => [trace, index]).filter(([trace]) => trace.meta);
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

  // A band is hidden with its line.
  function hide(traces, indices) {
    const groups = new Set([...indices].map((index) => traces[index].legendgroup).filter(Boolean));
    traces.forEach((trace, index) => { trace.visible = !indices.has(index) && !groups.has(trace.legendgroup); });
  }

  function draw(host) {
    const figure = choosePair(host, JSON.parse(document.getElementById(host.dataset.figure).textContent));
    const colours = theme();
    const swap = new Map(themes.light.palette.map((colour, index) => [colour, colours.palette[index]]));
    figure.data.forEach((trace) => recolour(trace, swap));
    hide(figure.data, hidden.get(host) || new Set());
    drawLegend(host, figure.data);
    const layout = layoutOf(figure.layout, colours);
    if (isPrinting) Object.assign(layout, { autosize: false, width: PRINT_WIDTH });
    drawn.add(host);
    return Plotly.react(host, figure.data, layout, {
      responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
    });
  }

  const isVisible = (host) => host.offsetParent !== null;
  const waiting = () => [...document.querySelectorAll(".plot")].filter((host) => !drawn.has(host) && isVisible(host));

  // One figure a turn, so that the page answers while a long one is drawn.
  async function drawWaiting() {
    for (let next = waiting()[0]; next; next = waiting()[0]) {
      await draw(next);
      await new Promise((resolve) => setTimeout(resolve, 0));
    }
    document.documentElement.dataset.drawn = String(drawn.size);
  }

  const redraw = () => [...drawn].filter(isVisible).forEach(draw);

  document.querySelectorAll("details").forEach((details) => details.addEventListener("toggle", drawWaiting));
  prefersDark.addEventListener("change", () => { [...drawn].forEach((host) => isVisible(host) ? draw(host) : drawn.delete(host)); });
  window.addEventListener("beforeprint", () => { isPrinting = true; redraw(); });
  window.addEventListener("afterprint", () => { isPrinting = false; redraw(); });
  drawWaiting();
})();
