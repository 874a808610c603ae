"use strict";
// Draws the charts of the page from the JSON beside it. Names are only ever set as text.
(() => {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const style = getComputedStyle(document.documentElement);
  const paint = name => style.getPropertyValue(name).trim();
  const colour = one => () => paint(`--s${one.colour}`);
  // Half of the colours are close to one of the others for some eyes: their lines are dashed.
  const dash = one => one.colour >= 5 ? [8, 5] : undefined;
  const drawn = new Map();

  const digits = v => v >= 100 ? v.toFixed(0) : v >= 10 ? v.toFixed(1) : v >= 1 ? v.toFixed(2) : v.toPrecision(2);
  const plain = v => String(+v.toPrecision(3));
  const inUnit = (us, say) => us < 1e3 ? `${say(us)} µs` : us < 1e6 ? `${say(us / 1e3)} ms` : `${say(us / 1e6)} s`;
  const time = us => us == null ? "" : inUnit(us, digits);
  const count = v => v == null ? "" : v >= 1e6 ? `${plain(v / 1e6)} M` : v >= 1e3 ? `${plain(v / 1e3)} k` : plain(v);
  const nines = x => {
    const share = 100 * (1 - 10 ** -x);
    return `p${+share.toFixed(Math.max(0, Math.ceil(x - 1)))}`;
  };
  const day = unix => new Date(unix * 1e3).toISOString().slice(0, 10);

  const axis = more => ({
    stroke: () => paint("--soft"), font: "11px system-ui, sans-serif", size: 34,
    grid: { stroke: () => paint("--rule"), width: 1 }, ticks: { show: false }, ...more,
  });

  // What each series says where the pointer is.
  const tip = (title, value) => {
    let box;
    return { hooks: {
      init: u => { box = document.createElement("div"); box.className = "tip"; box.hidden = true; u.over.appendChild(box); },
      setCursor: u => {
        const { left, idx } = u.cursor;
        box.hidden = idx == null || left < 0;
        if (box.hidden) return;
        box.replaceChildren();
        const head = document.createElement("b");
        head.textContent = title(u.data[0][idx]);
        box.append(head);
        u.series.forEach((one, i) => {
          if (i === 0 || u.data[i][idx] == null) return;
          const line = document.createElement("div"), name = document.createElement("span"), figure = document.createElement("span");
          name.textContent = one.label; name.style.color = one._stroke || one.stroke(u, i); figure.textContent = value(u.data[i][idx]);
          line.append(name, figure); box.append(line);
        });
        const right = left > u.over.clientWidth / 2;
        box.style.top = "8px";
        box.style.left = right ? "" : `${left + 14}px`;
        box.style.right = right ? `${u.over.clientWidth - left + 14}px` : "";
      },
    } };
  };

  const joined = chart => chart.series.length ? uPlot.join(chart.series.map(one => [one.x, one.y])) : [[]];
  const around = (low, high) => { const room = (high / low) ** 0.06; return [low / room, high * room]; };

  const kinds = {
    latency: chart => ({
      data: joined(chart),
      scales: { x: { time: false }, y: { distr: 3, range: (u, low, high) => around(low, high) } },
      series: chart.series.map(one => ({ label: one.name, stroke: colour(one), dash: dash(one), width: 2, points: { show: false }, spanGaps: true })),
      axes: [
        axis({ splits: u => { const all = []; for (let x = 0; x <= u.scales.x.max; x++) all.push(x); if (u.scales.x.max >= .3) all.splice(1, 0, Math.log10(2)); return all; },
               values: (u, splits) => splits.map(x => x > 0 ? nines(x) : u.width > 460 ? "min" : "") }),
        axis({ size: 62, values: (u, splits) => splits.map(v => v == null ? "" : inUnit(v, plain)), splits: u => rounds(u.scales.y.min, u.scales.y.max), filter: (u, splits) => splits }),
      ],
      plugins: [tip(nines, time)],
    }),
    slices: chart => ({
      data: joined(chart),
      scales: { x: { time: false }, y: { range: (u, low, high) => [Math.min(.9, low - .02), Math.max(1.1, high + .02)] } },
      series: chart.series.map(one => ({
        label: one.name, stroke: colour(one), paths: () => null, points: { show: true, size: 4, width: 0, fill: colour(one) },
      })),
      axes: [axis({ values: (u, splits) => splits.map(v => `${v} s`) }), axis({ size: 48, values: (u, splits) => splits.map(v => `${Math.round(v * 100)} %`) })],
      plugins: [{ hooks: { drawClear: u => verticals(u, chart.starts) } }],
      cursor: { show: false },
    }),
    history: chart => ({
      data: joined(chart),
      scales: { y: { distr: 3, range: (u, low, high) => around(Math.min(low, ...chart.series.flatMap(one => one.low)), Math.max(high, ...chart.series.flatMap(one => one.high))) } },
      series: chart.series.map(one => ({ label: one.name, stroke: colour(one), dash: dash(one), width: 2, spanGaps: true, points: { show: true, size: 6, fill: colour(one) } })),
      axes: [axis({ space: 80, size: 46 }), axis({ size: 62, values: (u, splits) => splits.map(v => v == null ? "" : chart.unit === "us" ? inUnit(v, plain) : count(v)), splits: u => rounds(u.scales.y.min, u.scales.y.max), filter: (u, splits) => splits })],
      plugins: [tip(day, chart.unit === "us" ? time : count), { hooks: { draw: u => whiskers(u, chart.series) } }],
    }),
  };

  // Round values on a log axis: 1, 2 and 5 of each decade, or finer steps where the range is small.
  const rounds = (low, high) => {
    const all = [];
    const parts = high / low > 3000 ? [1] : high / low > 6 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 8];
    for (let p = Math.floor(Math.log10(low)); p <= Math.log10(high); p++)
      for (const part of parts) if (part * 10 ** p >= low && part * 10 ** p <= high) all.push(part * 10 ** p);
    return all.length > 1 ? all : [low, (low + high) / 2, high];
  };
  const verticals = (u, starts) => {
    u.ctx.save(); u.ctx.strokeStyle = paint("--faint"); u.ctx.globalAlpha = .5; u.ctx.setLineDash([4, 5]); u.ctx.beginPath();
    for (const at of starts) { const x = u.valToPos(at, "x", true); u.ctx.moveTo(x, u.bbox.top); u.ctx.lineTo(x, u.bbox.top + u.bbox.height); }
    u.ctx.stroke(); u.ctx.restore();
  };
  const whiskers = (u, series) => {
    u.ctx.save(); u.ctx.lineWidth = 1.5 * devicePixelRatio;
    for (const one of series) {
      u.ctx.strokeStyle = paint(`--s${one.colour}`); u.ctx.beginPath();
      one.x.forEach((at, i) => { const x = u.valToPos(at, "x", true); u.ctx.moveTo(x, u.valToPos(one.low[i], "y", true)); u.ctx.lineTo(x, u.valToPos(one.high[i], "y", true)); });
      u.ctx.stroke();
    }
    u.ctx.restore();
  };

  const draw = box => {
    const chart = charts[box.id];
    if (!chart || drawn.has(box.id)) return;
    const { data, series, ...options } = kinds[chart.kind](chart);
    box.replaceChildren();
    const whole = {
      width: box.clientWidth, height: box.clientHeight, legend: { show: false }, padding: [8, 26, 0, 0],
      cursor: { points: { size: 7 }, drag: { x: true, y: false } }, ...options, series: [{}, ...series],
    };
    drawn.set(box.id, new uPlot(whole, data, box));
  };
  const boxes = [...document.querySelectorAll(".chart")];
  const near = new IntersectionObserver(seen => seen.forEach(one => one.isIntersecting && draw(one.target)), { rootMargin: "600px" });
  const sized = new ResizeObserver(seen => seen.forEach(one => {
    const plot = drawn.get(one.target.id);
    if (plot && Math.abs(plot.width - one.contentRect.width) >= 1) plot.setSize({ width: one.contentRect.width, height: one.contentRect.height });
  }));
  boxes.forEach(box => { near.observe(box); sized.observe(box); });
  // All that is unfolded, also for a picture of the whole page; a folded chart has no size yet.
  const idle = window.requestIdleCallback || (run => setTimeout(run, 200));
  const rest = boxes.filter(box => box.clientWidth > 0);
  const next = () => { const box = rest.shift(); if (box) { draw(box); idle(next); } };
  idle(next);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach(plot => plot.redraw(false, true)));
  // A link of the matrix opens the experiment that it leads to; paper has no folds.
  const unfold = () => {
    const experiment = /^#experiment-\d+$/.test(location.hash) && document.querySelector(`${location.hash} > .fold`);
    if (experiment) { experiment.open = true; experiment.parentElement.scrollIntoView(); }
  };
  addEventListener("hashchange", unfold);
  unfold();
  addEventListener("beforeprint", () => {
    document.querySelectorAll(".experiment > .fold").forEach(one => { one.open = true; });
    boxes.forEach(draw);
  });
})();
