"use strict";
(() => {
  const root = document.documentElement;
  const $ = (id) => document.getElementById(id);
  const colors = () => getComputedStyle(root);

  // ---- plots: names of colours become those of the theme; narrow screens get the rows' numbers as names
  const figures = JSON.parse($("figures").textContent || "[]");
  const narrow = () => window.innerWidth < 760;
  const painted = (value, style) => {
    if (typeof value === "string" && value.startsWith("$")) {
      if (value === "$heat") return [[0, style.getPropertyValue("--heat0").trim()], [1, style.getPropertyValue("--heat1").trim()]];
      return style.getPropertyValue("--" + value.slice(1)).trim() || value;
    }
    if (Array.isArray(value)) return value.map((item) => painted(item, style));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, painted(item, style)]));
    }
    return value;
  };
  const axisLook = (axis, style) => ({
    gridcolor: style.getPropertyValue("--grid").trim(), zerolinecolor: style.getPropertyValue("--line").trim(),
    linecolor: style.getPropertyValue("--line").trim(), ...axis,
  });
  const draw = () => {
    const style = colors();
    for (const figure of typeof Plotly === "undefined" ? [] : figures) {
      const place = document.querySelector(`[data-plot="${figure.id}"]`);
      const layout = painted(figure.layout, style);
      layout.xaxis = axisLook(layout.xaxis, style);
      layout.yaxis = axisLook(layout.yaxis, style);
      const names = Object.entries(figure.names);
      if (names.length) {
        layout.yaxis.tickvals = names.map(([short]) => short);
        layout.yaxis.ticktext = names.map(([short, long]) => narrow() ? short : long);
      }
      Object.assign(layout, {
        paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", autosize: true, hovermode: "closest",
        font: { color: style.getPropertyValue("--text").trim(), family: "system-ui, DejaVu Sans, sans-serif", size: 12 },
        margin: { l: 8, r: 16, t: 8, b: 8, pad: 4 },
        hoverlabel: { align: "left", namelength: -1 }, dragmode: false,
      });
      const data = painted(figure.data, style);
      if (narrow()) {
        layout.font.size = 11;
        for (const trace of data) if (trace.meta) trace[trace.type === "heatmap" ? "text" : "name"] = trace.meta.brief;
      }
      Plotly.react(place, data, layout, { displayModeBar: false, responsive: true, scrollZoom: false });
    }
    root.dataset.drawn = "yes";
  };
  draw();
  let wasNarrow = narrow();
  window.addEventListener("resize", () => { if (narrow() !== wasNarrow) { wasNarrow = narrow(); draw(); } });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  $("theme").value = root.dataset.theme || "system";
  $("theme").addEventListener("change", (event) => {
    const chosen = event.target.value;
    if (chosen === "system") delete root.dataset.theme; else root.dataset.theme = chosen;
    try { localStorage.setItem("syncless-theme", chosen); } catch (_) { /* lasts for this page only */ }
    draw();
  });

  // ---- the table: a body is a row with its warnings and details
  const table = $("rows");
  if (!table) return;
  const bodies = [...table.tBodies];
  const heads = [...table.tHead.querySelectorAll("button")];
  const facets = [...document.querySelectorAll("[data-facet]")];
  let sorted = { column: 0, down: false };
  const key = (body, column) => body.rows[0].cells[column].dataset.sort;
  const compare = (a, b) => {
    if (a === b) return 0;
    if (a === "" || b === "") return a === "" ? 2 : -2; // what is not known stays last
    const x = Number(a), y = Number(b);
    return Number.isNaN(x) || Number.isNaN(y) ? Math.sign(a.localeCompare(b, "en", { numeric: true })) : Math.sign(x - y);
  };
  const sort = (column, down) => {
    sorted = { column, down };
    const order = [...table.tBodies].sort((a, b) => {
      const found = compare(key(a, column), key(b, column));
      return Math.abs(found) === 2 || !down ? found : -found;
    });
    order.forEach((body) => table.append(body));
    heads.forEach((head, n) => {
      const cell = head.closest("th");
      if (n === column) cell.setAttribute("aria-sort", down ? "descending" : "ascending"); else cell.removeAttribute("aria-sort");
    });
    $("sort").value = String(column);
  };
  const preferred = (column) => $("sort").options[column].dataset.down === "1";
  heads.forEach((head, column) => head.addEventListener("click", () =>
    sort(column, sorted.column === column ? !sorted.down : preferred(column))));
  $("sort").addEventListener("change", (event) => sort(Number(event.target.value), preferred(Number(event.target.value))));
  $("turn").addEventListener("click", () => sort(sorted.column, !sorted.down));

  const texts = bodies.map((body) => body.textContent.toLowerCase());
  const chosen = bodies.map((body) => JSON.parse(body.dataset.facets));
  const filter = () => {
    const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    bodies.forEach((body, n) => {
      const fits = words.every((word) => texts[n].includes(word)) &&
        facets.every((facet, f) => !facet.value || chosen[n][f] === facet.value);
      body.hidden = !fits;
      shown += fits;
    });
    $("count").value = `${shown} of ${bodies.length} rows`;
  };
  $("filter").addEventListener("input", filter);
  facets.forEach((facet) => facet.addEventListener("change", filter));
  $("clear").addEventListener("click", () => {
    $("filter").value = "";
    facets.forEach((facet) => { facet.value = ""; });
    filter();
  });
  table.addEventListener("click", (event) => {
    const button = event.target.closest(".more");
    if (!button) return;
    const detail = button.closest("tbody").querySelector(".detail");
    detail.hidden = !detail.hidden;
    button.setAttribute("aria-expanded", String(!detail.hidden));
  });
  sort(Number(table.dataset.sort || 0), table.dataset.down === "1");
})();
