"use strict";
// two charts from the numbers embedded in the page: curves of the loss, and quality against cost
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const DASHES = ["", "6 4", "2 3", "8 3 2 3"];
  const colour = name => `var(--c${data.names.indexOf(name) % 8})`;
  const dash = name => DASHES[Math.floor(data.names.indexOf(name) / 8) % DASHES.length];
  for (const swatch of document.querySelectorAll(".swatch")) swatch.style.background = colour(swatch.dataset.name);

  const XS = {
    steps: { at: 0, title: "steps" }, seconds: { at: 1, title: "seconds of training" },
    FLOPs: { at: 2, title: "floating-point operations" }, tokens: { at: 3, title: "tokens" },
  };
  const COSTS = {
    speed: { key: "speed", title: "tokens per second" }, memory: { key: "memory", title: "peak memory, bytes" },
    "FLOPs/token": { key: "flops", title: "operations per token, forward" }, parameters: { key: "params", title: "parameters" },
  };

  function short(x) {
    const size = Math.abs(x);
    if (size >= 1e15) return x.toExponential(1).replace("e+", "e");
    for (const [unit, mark] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]])
      if (size >= unit) return String(+(x / unit).toPrecision(3)) + mark;
    return String(+x.toPrecision(3));
  }

  function svg(name, attributes, parent, text) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) if (value !== "") element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    if (parent) parent.append(element);
    return element;
  }

  function node(name, parent, text, kind) {
    const element = document.createElement(name);
    if (text !== undefined) element.textContent = text;
    if (kind) element.className = kind;
    parent.append(element);
    return element;
  }

  // round numbers that cover a range: steps of 1, 2 or 5 times a power of ten
  function ticks(low, high, about) {
    const raw = (high - low) / about || 1;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map(m => m * power).find(s => s >= raw);
    const found = [];
    for (let t = Math.ceil(low / step) * step; t <= high + step * 1e-9; t += step) found.push(+t.toPrecision(12));
    return found;
  }

  function logTicks(low, high) {
    const found = [];
    for (let p = Math.floor(Math.log10(low)); p <= Math.log10(high); p++)
      for (const m of [1, 2, 5]) if (m * 10 ** p >= low && m * 10 ** p <= high) found.push(m * 10 ** p);
    return found.length > 7 ? found.filter((_, i) => i % Math.ceil(found.length / 6) === 0) : found;
  }

  function choice(bar, options, state, key, draw) {
    if (options.length < 2) return;
    const group = node("span", bar, undefined, "switch");
    for (const option of options) {
      const button = node("button", group, option);
      button.setAttribute("aria-pressed", String(state[key] === option));
      button.addEventListener("click", () => {
        state[key] = option;
        for (const other of group.children) other.setAttribute("aria-pressed", String(other === button));
        draw();
      });
    }
  }

  // axes, grid and the two scales of a chart that is as wide as its box
  function frame(box, title, xs, ys, log) {
    box.querySelector("svg")?.remove();
    const width = Math.max(280, box.clientWidth - 24), height = Math.max(240, Math.min(420, width * 0.5));
    const m = { left: 48, right: 16, top: 12, bottom: 40 };
    const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
    box.append(root);
    const pad = (low, high) => { const room = (high - low || Math.abs(high) || 1) * 0.05; return [low - room, high + room]; };
    const [y0, y1] = pad(Math.min(...ys), Math.max(...ys));
    let [x0, x1] = [Math.min(...xs), Math.max(...xs)];
    if (log) [x0, x1] = x0 === x1 ? [x0 / 2, x1 * 2] : [x0 / 1.05, x1 * 1.05];
    else if (x0 !== 0 || x1 === 0) [x0, x1] = pad(x0, x1);
    const f = log ? Math.log10 : v => v;
    const X = v => m.left + (width - m.left - m.right) * (f(v) - f(x0)) / (f(x1) - f(x0));
    const Y = v => m.top + (height - m.top - m.bottom) * (1 - (v - y0) / (y1 - y0));
    for (const t of ticks(y0, y1, 5)) {
      svg("line", { class: "grid", x1: m.left, x2: width - m.right, y1: Y(t), y2: Y(t) }, root);
      svg("text", { class: "axis", x: m.left - 8, y: Y(t) + 4, "text-anchor": "end" }, root, String(+t.toPrecision(4)));
    }
    for (const t of log ? logTicks(x0, x1) : ticks(x0, x1, Math.min(7, width / 90)))
      svg("text", { class: "axis", x: X(t), y: height - m.bottom + 18, "text-anchor": "middle" }, root, short(t));
    svg("text", { class: "axis", x: width - m.right, y: height - 4, "text-anchor": "end" }, root, title);
    return { root, X, Y, width };
  }

  // the words of the nearest point, beside it
  function hover(box, root, points, tip) {
    const leave = () => { tip.style.display = "none"; };
    root.addEventListener("pointermove", event => {
      const area = root.getBoundingClientRect(), scale = root.viewBox.baseVal.width / area.width;
      const x = (event.clientX - area.left) * scale, y = (event.clientY - area.top) * scale;
      let best = null, distance = 60 ** 2;
      for (const p of points) {
        const d = (p.x - x) ** 2 + (p.y - y) ** 2;
        if (d < distance) { best = p; distance = d; }
      }
      if (!best) return leave();
      tip.textContent = best.words;
      tip.style.display = "block";
      const left = best.x / scale + 24, over = left + tip.offsetWidth > box.clientWidth;
      tip.style.left = `${Math.max(4, over ? left - tip.offsetWidth - 32 : left)}px`;
      tip.style.top = `${root.offsetTop + best.y / scale - 12}px`;
    });
    root.addEventListener("pointerleave", leave);
  }

  function chart(id, controls, paint) {
    const box = document.getElementById(id);
    if (!box) return;
    const bar = node("div", box, undefined, "bar"), tip = node("div", box, undefined, "tip");
    const draw = () => { tip.style.display = "none"; paint(box, tip); };
    controls(bar, draw);
    draw();
    let width = box.clientWidth;
    new ResizeObserver(() => { if (box.clientWidth !== width) { width = box.clientWidth; draw(); } }).observe(box);
  }

  const path = points => points.map((p, i) => `${i ? "L" : "M"}${p.x.toFixed(1)} ${p.y.toFixed(1)}`).join("");

  // validations of all seeds of a contestant, averaged place by place as far as all of them go
  function mean(trials) {
    const length = Math.min(...trials.map(t => t.length));
    return [...Array(length).keys()].map(i => {
      const at = trials.map(t => t[i]);
      return { v: at.reduce((s, p) => s + p.v, 0) / at.length, l: at.reduce((s, p) => s + p.l, 0) / at.length };
    });
  }

  const curves = { x: "steps", measure: data.measures[0], scale: "linear", hidden: new Set() };
  chart("curves", (bar, draw) => {
    choice(bar, Object.keys(XS), curves, "x", draw);
    choice(bar, [...new Set([...data.measures, ...data.all])], curves, "measure", draw);
    choice(bar, ["linear", "log"], curves, "scale", draw);
    const legend = node("span", bar, undefined, "legend");
    for (const name of data.names.filter(n => data.trials.some(t => t.name === n))) {
      const button = node("button", legend);
      const swatch = node("span", button, undefined, "swatch");
      swatch.style.background = colour(name);
      button.append(name);
      button.setAttribute("aria-pressed", "true");
      button.addEventListener("click", () => {
        const hide = !curves.hidden.has(name);
        if (hide) curves.hidden.add(name); else curves.hidden.delete(name);
        button.setAttribute("aria-pressed", String(!hide));
        draw();
      });
    }
  }, (box, tip) => {
    const { at, title } = XS[curves.x], log = curves.scale === "log";
    const lines = new Map();
    for (const trial of data.trials) {
      const points = trial.points.map(p => ({ v: p[at], l: p[4][curves.measure] })).filter(p => Number.isFinite(p.l) && (!log || p.v > 0));
      if (curves.hidden.has(trial.name) || !points.length) continue;
      if (!lines.has(trial.name)) lines.set(trial.name, []);
      lines.get(trial.name).push(points);
    }
    const all = [...lines.values()].flat(2);
    if (!all.length) { box.querySelector("svg")?.remove(); return; }
    const { root, X, Y } = frame(box, `${curves.measure} against ${title}`, all.map(p => p.v), all.map(p => p.l), log);
    const place = p => ({ x: X(p.v), y: Y(p.l) }), near = [];
    for (const [name, trials] of lines) {
      const style = { fill: "none", stroke: colour(name), "stroke-linejoin": "round", "stroke-dasharray": dash(name) };
      if (trials.length > 1)
        for (const t of trials) svg("path", { ...style, d: path(t.map(place)), "stroke-width": 1, opacity: 0.35 }, root);
      const middle = mean(trials);
      svg("path", { ...style, d: path(middle.map(place)), "stroke-width": 2.25 }, root);
      for (const p of middle) {
        svg("circle", { cx: X(p.v), cy: Y(p.l), r: 2.5, fill: colour(name) }, root);
        near.push({ ...place(p), words: `${name}\n${curves.measure} ${p.l.toFixed(4)}\n${short(p.v)} ${curves.x}` });
      }
    }
    hover(box, root, near, tip);
  });

  const trade = { cost: "speed", measure: data.measures[0] };
  chart("trade", (bar, draw) => {
    choice(bar, Object.keys(COSTS), trade, "cost", draw);
    choice(bar, data.measures, trade, "measure", draw);
  }, (box, tip) => {
    const { key, title } = COSTS[trade.cost];
    const rows = data.rows.filter(r => r.measure === trade.measure && Number.isFinite(r[key]));
    if (!rows.length) { box.querySelector("svg")?.remove(); return; }
    const ys = rows.flatMap(r => [r.final - (r.spread || 0), r.final + (r.spread || 0)]);
    const { root, X, Y, width } = frame(box, `${trade.measure} against ${title}`, rows.map(r => r[key]), ys, false);
    const near = [];
    for (const r of rows) {
      const x = X(r[key]), y = Y(r.final), right = x > width * 0.8;
      if (r.spread)
        svg("line", { x1: x, x2: x, y1: Y(r.final - r.spread), y2: Y(r.final + r.spread), stroke: colour(r.name), "stroke-width": 1.5 }, root);
      svg("circle", { cx: x, cy: y, r: 6, fill: colour(r.name) }, root);
      svg("text", { class: "name", x: right ? x - 11 : x + 11, y: y + 4, "text-anchor": right ? "end" : "start", fill: "currentColor" }, root, r.name);
      near.push({ x, y, words: `${r.name}\n${r.measure} ${r.final.toFixed(4)}\n${short(r[key])} ${title}` });
    }
    hover(box, root, near, tip);
  });
})();
