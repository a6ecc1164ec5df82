"use strict";
// draws what was seen of a text into the page; an opening "path/head/row/column" says where to look first
const show = (data, opening = "") => {
  const page = document.getElementById("page");
  page.replaceChildren();
  const svgNS = "http://www.w3.org/2000/svg";
  const style = getComputedStyle(document.documentElement);
  const colour = name => style.getPropertyValue(name).trim();

  const unpack = packed => {
    const bytes = Uint8Array.from(atob(packed.data), c => c.charCodeAt(0));
    return new Float32Array(bytes.buffer);
  };
  const make = (name, attributes = {}, ...children) => {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
      else if (value !== null && value !== undefined) node.setAttribute(key, value);
    }
    node.append(...children);
    return node;
  };
  const draw = (name, attributes, text) => {
    const node = document.createElementNS(svgNS, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const visible = text => text.replace(/ /g, "␣").replace(/\n/g, "⏎").replace(/\t/g, "⇥");
  const number = x => (x === null || Number.isNaN(x) ? "–" : Math.abs(x) >= 1e-4 || x === 0 ? x.toFixed(4) : x.toExponential(2));

  const maps = data.maps.map(m => ({ ...m, values: unpack(m), heads: m.shape[0], rows: m.shape[1], cols: m.shape[2] }));
  const labels = (map, axis) => {
    if (axis === "rows") return (map.side === "source" ? data.source : data.tokens).slice(0, map.rows);
    if (map.keys === "same") return labels(map, "rows");
    if (map.keys === "source") return data.source;
    return Array.from({ length: map.cols }, (_, i) => `slot ${i}`);
  };
  const weight = (map, h, i, j) => map.values[(h * map.rows + i) * map.cols + j];

  const rgb = hex => [1, 3, 5].map(i => parseInt(hex.slice(i, i + 2), 16));
  const paint = (canvas, map, h) => {
    canvas.width = map.cols;
    canvas.height = map.rows;
    const [r, g, b] = rgb(colour("--accent") || "#8a3b12");
    const context = canvas.getContext("2d");
    const image = context.createImageData(map.cols, map.rows);
    for (let i = 0; i < map.rows * map.cols; i++) {
      const w = map.values[h * map.rows * map.cols + i];
      image.data.set([r, g, b, Math.round(255 * Math.sqrt(Math.min(1, Math.max(0, w))))], 4 * i);
    }
    context.putImageData(image, 0, 0);
  };

  let chosen = { map: 0, head: 0 };
  const buttons = [];
  const choose = (m, h, focus) => {
    m = Math.max(0, Math.min(maps.length - 1, m));
    h = Math.max(0, Math.min(maps[m].heads - 1, h));
    chosen = { map: m, head: h };
    for (const row of buttons) for (const button of row) button.setAttribute("aria-pressed", "false");
    const button = buttons[m][h];
    button.setAttribute("aria-pressed", "true");
    if (focus) button.focus();
    zoom();
  };

  const overview = () => {
    const grid = make("div", { class: "grid", id: "overview", role: "group", "aria-label": "heads" });
    maps.forEach((map, m) => {
      const row = make("div", { class: "heads" }, make("span", {}, map.path + (map.keys === "source" ? " → source" : "")));
      buttons[m] = [];
      for (let h = 0; h < map.heads; h++) {
        const canvas = make("canvas");
        paint(canvas, map, h);
        const habit = map.habits[h];
        const name = `${map.path}, head ${h}${habit ? `: ${habit.name}` : ""}`;
        const button = make("button", { type: "button", title: name, "aria-label": name, "aria-pressed": "false", onclick: () => choose(m, h) }, canvas);
        buttons[m].push(button);
        row.append(button);
      }
      grid.append(row);
    });
    grid.addEventListener("keydown", event => {
      const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
      if (!step) return;
      event.preventDefault();
      choose(chosen.map + step[0], chosen.head + step[1], true);
    });
    return grid;
  };

  const cell = 12, margin = 64;
  const big = draw("svg", { id: "map", tabindex: "0", role: "img", "aria-label": "attention of the chosen head; arrow keys move" });
  const picture = draw("image", { x: 0, y: 0, preserveAspectRatio: "none" });
  const cursor = draw("rect", { width: cell, height: cell, fill: "none", class: "cursor" });
  const told = make("p", { id: "told", "aria-live": "polite" });
  const heading = make("h3", { id: "chosen" });
  const lines = draw("svg", { id: "lines", role: "img", "aria-label": "lines from the chosen query to the keys it attends to" });
  let at = [0, 0];
  const tell = (i, j) => {
    const map = maps[chosen.map];
    at = [Math.max(0, Math.min(map.rows - 1, i)), Math.max(0, Math.min(map.cols - 1, j))];
    const from = visible(labels(map, "rows")[at[0]]), to = visible(labels(map, "cols")[at[1]]);
    const w = weight(map, chosen.head, at[0], at[1]);
    told.textContent = `${at[0]} ${from} → ${at[1]} ${to}: ${w}`;
    Object.assign(told.dataset, { value: w, row: at[0], column: at[1] });
    cursor.setAttribute("x", at[1] * cell);
    cursor.setAttribute("y", at[0] * cell);
    connect(at[0]);
  };
  const place = event => {
    const box = picture.getBoundingClientRect(), map = maps[chosen.map];
    tell(Math.floor((event.clientY - box.top) / box.height * map.rows), Math.floor((event.clientX - box.left) / box.width * map.cols));
  };
  big.addEventListener("pointermove", place);
  big.addEventListener("pointerdown", place);
  big.addEventListener("keydown", event => {
    const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    if (!step) return;
    event.preventDefault();
    tell(at[0] + step[0], at[1] + step[1]);
  });

  const connect = row => {
    const map = maps[chosen.map], from = labels(map, "rows"), to = labels(map, "cols"), step = 16;
    const height = step * Math.max(from.length, to.length) + step;
    lines.setAttribute("viewBox", `0 0 320 ${height}`);
    lines.replaceChildren();
    for (let j = 0; j < to.length; j++) {
      const w = weight(map, chosen.head, row, j);
      if (w > 0.005) {
        const line = draw("line", { x1: 112, y1: step * (row + 1) - 4, x2: 208, y2: step * (j + 1) - 4, "stroke-width": 0.5 + 4 * w, opacity: Math.min(1, 0.15 + w) });
        line.append(draw("title", {}, `${w}`));
        lines.append(line);
      }
      lines.append(draw("text", { x: 214, y: step * (j + 1) }, visible(to[j])));
    }
    from.forEach((text, i) => {
      const node = draw("text", { x: 106, y: step * (i + 1), "text-anchor": "end", "font-weight": i === row ? 700 : 400 }, visible(text));
      node.addEventListener("click", () => tell(i, at[1]));
      lines.append(node);
    });
  };

  const zoom = () => {
    const map = maps[chosen.map], habit = map.habits[chosen.head];
    const canvas = document.createElement("canvas");
    paint(canvas, map, chosen.head);
    const width = map.cols * cell, height = map.rows * cell;
    big.setAttribute("viewBox", `${-margin} ${-margin} ${width + margin} ${height + margin}`);
    for (const [name, value] of Object.entries({ href: canvas.toDataURL(), width, height })) picture.setAttribute(name, value);
    const short = text => (visible(text).length > 9 ? visible(text).slice(0, 8) + "…" : visible(text));
    const every = n => Math.max(1, Math.ceil(n / 96));
    const left = labels(map, "rows").map((text, i) => i % every(map.rows) ? "" : draw("text", { x: -4, y: i * cell + 10, "text-anchor": "end" }, short(text)));
    const top = labels(map, "cols").map((text, j) => j % every(map.cols) ? "" : draw("text", { x: 4, y: 0, transform: `translate(${j * cell + 10} 0) rotate(-90)` }, short(text)));
    big.replaceChildren(draw("rect", { width, height, class: "frame" }), picture, ...left, ...top, cursor);
    heading.textContent = `${map.path}, head ${chosen.head}${habit ? ` · ${habit.name}` : ""}`;
    tell(Math.min(at[0], map.rows - 1), Math.min(at[1], map.cols - 1));
  };

  const table = (names, rows, id) => {
    const head = make("tr", {}, ...names.map((name, i) => make("th", { class: i ? null : "text" }, name)));
    const body = rows.map(cells => make("tr", {}, ...cells.map((cell, i) => make(i ? "td" : "th", { class: i ? null : "text" }, String(cell)))));
    return make("div", { class: "scroll", id }, make("table", { class: "small" }, make("thead", {}, head), make("tbody", {}, ...body)));
  };

  const section = (title, ...children) => page.append(make("section", {}, make("h2", {}, title), ...children));

  if (maps.length) {
    section("Heads", make("p", { class: "dim" }, "Attention weights of every head: rows are queries, columns are keys; the stronger the colour, the larger the weight. Click a head, or move with the arrow keys."), overview());
    section("One head", heading, make("div", { id: "zoom" }, make("div", {}, big, told), lines));
  }

  const perToken = (special, values) => {
    const shape = special.shape, n = special.path.startsWith("encoder") && data.source.length ? data.source : data.tokens;
    if (shape.length < 2 || shape[1] !== n.length || shape[0] !== 1) return null;
    const width = values.length / n.length;
    const most = Math.max(...values, 1e-9);
    return make("div", { class: "pieces" }, ...n.map((text, i) => {
      const mine = Array.from(values.slice(i * width, (i + 1) * width));
      const shade = Math.round(35 * Math.max(...mine) / most);
      return make("span", { title: mine.join(", "), style: `background: color-mix(in srgb, var(--accent) ${shade}%, transparent)` },
        visible(text), make("small", {}, ` ${mine.slice(0, 4).map(x => +x.toFixed(3)).join(" ")}`));
    }));
  };
  const summary = values => {
    const list = Array.from(values);
    const mean = list.reduce((a, b) => a + b, 0) / Math.max(1, list.length);
    return list.length === 1 ? number(list[0]) : `mean ${number(mean)}, from ${number(Math.min(...list))} to ${number(Math.max(...list))}`;
  };
  if (data.specials.length) {
    const parts = data.specials.map(special => {
      const values = unpack(special);
      return make("article", {}, make("h3", {}, `${special.path} · ${special.name}`), make("p", { class: "dim" }, `${special.meaning}: ${summary(values)}`), perToken(special, values) || "");
    });
    section("What is special to this relative", ...parts);
  }

  const habits = maps.flatMap(map => map.habits.map((habit, h) => [`${map.path} ${h}`, habit.name, ...["previous", "itself", "next_", "first", "separators", "entropy", "distance"].map(name => number(habit[name]))]));
  if (habits.length) section("What heads do", table(["head", "kind", "previous", "itself", "next", "first", "separators", "entropy", "distance"], habits, "habits"));

  if (data.plane) {
    const svg = document.importNode(new DOMParser().parseFromString(data.plane, "image/svg+xml").documentElement, true);
    svg.setAttribute("class", "dots");
    for (const dot of svg.querySelectorAll("g[data-name]")) {
      const [path, head] = dot.dataset.name.split("/");
      dot.addEventListener("click", () => choose(maps.findIndex(m => m.path === path), Number(head), true));
    }
    section("Heads that attend alike", make("p", { class: "dim" }, "Jensen-Shannon divergence of every two heads, on a plane; colours are layers."), svg);
  }
  if (data.relations.length) {
    const rows = data.relations.map(r => [r.relation, r.count, `${r.path} ${r.head}`, r.direction, `${(100 * r.accuracy).toFixed(1)} %`, r.offset, `${(100 * r.baseline).toFixed(1)} %`]);
    section("Which head finds which relation", table(["relation", "count", "head", "direction", "found", "best distance", "found by it"], rows, "relations"));
  }
  if (data.neighbours) {
    const found = data.neighbours, cosine = x => x.toFixed(3);
    const once = table([`“${found.word}” in the table`, "cosine"], found.static.map(n => [n.word, cosine(n.cosine)]), "static");
    const each = found.contextual.map((o, i) => make("article", {}, make("h3", {}, o.around),
      table(["nearest occurrences", "cosine"], o.near.map(n => [n.around, cosine(n.cosine)]), `contextual-${i}`)));
    section("A word without and with its context",
      make("p", { class: "dim" }, `By the table a word has the same neighbours everywhere; by its states (layer: ${found.layer}) others each time it occurs.`), once, ...each);
  }
  const worth = Object.entries(data.worth).flatMap(([path, w]) => w.rises.map((rise, h) => [`${path} ${h}`, number(rise), number(w.leans[h])]));
  if (worth.length) section("What heads are worth", make("p", { class: "dim" }, `Loss ${number(data.loss)}; how much it rises without the head, and the size of its gate's gradient.`), table(["head", "rise", "gradient"], worth, "worth"));

  // the head to open on: the one that attends most sharply to something other than itself, its neighbours and the first
  // token; and in it the query and key of its largest such weight
  const telling = () => {
    let best = { mean: -1 };
    maps.forEach((map, m) => {
      for (let h = 0; h < map.heads; h++) {
        let sum = 0, peak = [0, map.rows - 1, 0];
        for (let i = 0; i < map.rows; i++) {
          let top = 0;
          for (let j = 1; j < map.cols; j++) {
            const w = map.keys !== "same" || Math.abs(i - j) > 1 ? weight(map, h, i, j) : 0;
            if (w > top) top = w;
            if (w > peak[0]) peak = [w, i, j];
          }
          sum += top;
        }
        if (sum / map.rows > best.mean) best = { mean: sum / map.rows, map: m, head: h, row: peak[1], column: peak[2] };
      }
    });
    return best;
  };
  const [path, ...numbers] = decodeURIComponent(opening).split("/");
  const [head, row, column] = numbers.map(n => parseInt(n, 10) || 0);
  const known = maps.findIndex(m => m.path === path);
  const opened = !maps.length || known >= 0 ? { map: known, head: head || 0, row: row || 0, column: column || 0 } : telling();
  if (maps.length) {
    choose(opened.map, opened.head);
    tell(opened.row, opened.column);
  }
};

// a page of its own holds its data, and its address may end in #opening
const embedded = document.getElementById("data");
if (embedded) show(JSON.parse(embedded.textContent), location.hash.slice(1));
