"use strict";
addEventListener("DOMContentLoaded", () => {
  const at = id => document.getElementById(id);
  let kinds = JSON.parse(at("runs").textContent);
  const form = at("ask"), said = at("said"), button = form.querySelector("button"), out = at("answer");
  let waiting = null, shown = null, turns = [];

  const tell = (text, wrong) => {
    said.textContent = text;
    said.classList.toggle("wrong", Boolean(wrong));
  };
  const make = (name, text = "", attributes = {}) => {
    const node = document.createElement(name);
    node.textContent = text;
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    return node;
  };

  const send = async (path, options) => {
    const headers = { "content-type": "application/json" };
    if (at("token").value) headers.authorization = `Bearer ${at("token").value}`;
    const answer = await fetch(path, { headers, ...options });
    if (answer.status === 401) at("guarded").hidden = false;
    if (!answer.ok) throw new Error((await answer.json()).error.message);
    return answer;
  };
  const post = (path, body, signal) => send(path, { method: "POST", body: JSON.stringify(body), signal });

  // server-sent events, one value at a time
  const stream = async (path, body, signal, take) => {
    const reader = (await post(path, { ...body, stream: true }, signal)).body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = ""; ;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n\n");
      rest = lines.pop();
      for (const line of lines) {
        if (line === "data: [DONE]") continue;
        const piece = JSON.parse(line.slice(6));
        if (piece.error) throw new Error(piece.error.message);
        if (piece.choices.length) take(piece.choices[0]);
      }
    }
  };

  // a server with a token names its runs only to those who have it
  const learn = async signal => {
    if (Object.keys(kinds).length) return;
    const found = await (await send("v1/models", { signal })).json();
    kinds = Object.fromEntries(found.data.map(one => [one.id, one]));
    at("run").replaceChildren(...Object.keys(kinds).map(name => new Option(name, name)));
    choose();
  };

  const sampling = () => Object.fromEntries([...at("sampling").querySelectorAll("input")].filter(one => one.value !== "").map(one => [one.id, Number(one.value)]));

  const tasks = {
    complete: async (model, text, signal) => {
      const pairs = kinds[model].topology === "encoder-decoder", node = make("span");
      out.replaceChildren(...(pairs ? [] : [make("span", text, { class: "prompt" })]), node);
      const began = performance.now();
      let n = 0, reason = "";
      await stream("v1/completions", { model, prompt: text, ...sampling() }, signal, choice => {
        node.textContent += choice.text;
        n += 1;
        reason = choice.finish_reason || reason;
      });
      const ended = { length: "stopped at the maximum of new tokens", stop: "stopped at an end-of-text token" }[reason] || "";
      return [`${n} tokens`, `${Math.round(1000 * n / (performance.now() - began))} tokens/s`, ended].filter(Boolean).join(" · ");
    },
    chat: async (model, text, signal) => {
      turns.push({ role: "user", content: text });
      const node = make("p");
      if (turns.length === 1) out.replaceChildren();
      out.append(make("p", text, { class: "prompt" }), node);
      try {
        await stream("v1/chat/completions", { model, messages: turns, ...sampling() }, signal, choice => { node.textContent += choice.delta.content; });
      } catch (error) {
        // what was not answered is not part of the conversation
        turns.pop();
        throw error;
      }
      turns.push({ role: "assistant", content: node.textContent });
      at("text").value = "";
      return `${turns.length} messages`;
    },
    classify: async (model, text, signal) => {
      const input = at("second").value ? [[text, at("second").value]] : text;
      const [found] = (await (await post("v1/classify", { model, input }, signal)).json()).data;
      const table = make("table");
      for (const [name, p] of Object.entries(found.probabilities).sort((a, b) => b[1] - a[1])) {
        const row = table.insertRow(), bar = make("td");
        bar.append(make("meter", "", { min: 0, max: 1, value: p, "aria-label": name }));
        row.append(make("th", name, { scope: "row" }), bar, make("td", p.toFixed(4)));
      }
      out.replaceChildren(table);
      return found.label || found.labels.join(", ") || "no label";
    },
    predict: async (model, text, signal) => {
      const [first, other] = kinds[model].columns, row = { [first]: text };
      if (other) row[other] = at("second").value;
      const [found] = (await (await post("v1/predict", { model, input: [row] }, signal)).json()).data;
      const table = make("table");
      for (const [name, value] of Object.entries(found)) {
        const line = table.insertRow();
        const shown = typeof value === "number" && !Number.isInteger(value) ? value.toFixed(4) : typeof value === "object" ? JSON.stringify(value) : String(value);
        line.append(make("th", name, { scope: "row" }), make("td", shown));
      }
      out.replaceChildren(table);
      return String(found.answer ?? found.label ?? found.number ?? "done");
    },
    embed: async (model, text, signal) => {
      const input = at("second").value ? [text, at("second").value] : [text];
      const [a, b] = (await (await post("v1/embeddings", { model, input }, signal)).json()).data.map(one => one.embedding);
      const dot = (x, y) => x.reduce((sum, one, i) => sum + one * y[i], 0);
      const cosine = b ? dot(a, b) / Math.sqrt(dot(a, a) * dot(b, b)) : null;
      out.replaceChildren(make("p", b ? `cosine similarity ${cosine.toFixed(4)}` : `${a.length} dimensions`), make("span", a.slice(0, 8).map(x => x.toFixed(4)).join(", ") + " …"));
      return b ? "two vectors compared" : "one vector; a second text is compared with it";
    },
    inspect: async (model, text, signal) => {
      const body = { model, text };
      if (kinds[model].topology === "encoder-decoder" && at("target").value) body.target = at("target").value;
      const found = await (await post("v1/inspect", body, signal)).json();
      show(found, shown === model ? chosenPlace() : "");
      shown = model;
      const facts = Object.entries(found.facts).map(([name, value]) => `${name} ${value}`);
      const cut = found.cut ? [`${found.cut} more are left out`] : [];
      return [...facts, `${found.tokens.length} tokens`, ...cut, `${found.maps.length} attention layers`].join(" · ");
    },
  };
  const names = { chat: "Chat", complete: "Write", classify: "Classify", predict: "Predict", embed: "Embed and compare", inspect: "Inspect attention heads" };

  // of several answers on their way only the last is wanted; while text is written, the button stops it
  const run = async () => {
    const text = at("text").value;
    if (waiting) waiting.abort();
    if (!text) return;
    const mine = waiting = new AbortController();
    tell("Running …");
    button.textContent = "Stop";
    try {
      await learn(mine.signal);
      const verb = at("verb").value;
      out.hidden = verb === "inspect";
      at("page").hidden = verb !== "inspect";
      tell(await tasks[verb](at("run").value, text, mine.signal));
    } catch (error) {
      if (error.name !== "AbortError") tell(error.message, true);
      else if (mine === waiting) tell("Stopped.");
    } finally {
      if (mine === waiting) {
        waiting = null;
        button.textContent = "Run";
      }
    }
  };

  // the head and the cell that are chosen stay chosen while the text changes
  const chosenPlace = () => {
    const found = at("chosen") && at("chosen").textContent.match(/^(\S+), head (\d+)/);
    return found ? [found[1], found[2], at("told").dataset.row, at("told").dataset.column].join("/") : "";
  };

  let timer = null;
  const soon = () => {
    clearTimeout(timer);
    // only heads are cheap enough to follow the keys
    if (at("verb").value === "inspect") timer = setTimeout(run, 500);
  };
  const now = () => { clearTimeout(timer); run(); };
  const fit = () => {
    const kind = kinds[at("run").value], verb = at("verb").value, pairs = kind && kind.topology === "encoder-decoder";
    at("targeted").hidden = !(pairs && verb === "inspect");
    const columns = kind && verb === "predict" ? kind.columns : ["text", "second text"];
    const named = text => text[0].toUpperCase() + text.slice(1);
    at("texted").firstChild.textContent = named(columns[0]);
    at("seconded").firstChild.textContent = columns[1] ? named(columns[1]) : "";
    at("seconded").hidden = !(verb === "embed" || (["predict", "classify"].includes(verb) && kind.columns.length > 1));
    at("sampling").hidden = !["complete", "chat"].includes(verb);
    turns = [];
    out.replaceChildren();
    out.hidden = true;
  };
  const choose = () => {
    const kind = kinds[at("run").value], before = at("verb").value;
    if (!kind) { at("verb").replaceChildren(new Option(names.inspect, "inspect")); return fit(); }
    const asks = kind.columns.includes("question");
    const name = verb => verb === "complete" && kind.topology === "encoder-decoder" ? "Translate" : verb === "predict" && asks ? "Answer" : names[verb];
    // what classifies shows its probabilities; other labels are shown as they are
    const shown = verb => kind.does.includes(verb) && !(verb === "predict" && kind.does.includes("classify"));
    at("verb").replaceChildren(...Object.keys(names).filter(shown).map(verb => new Option(name(verb), verb)));
    at("verb").value = shown(before) ? before : "inspect";
    if (at("verb").selectedIndex < 0) at("verb").selectedIndex = 0;
    fit();
  };
  at("text").addEventListener("input", soon);
  at("target").addEventListener("input", soon);
  at("token").addEventListener("change", () => learn().then(run, error => tell(error.message, true)));
  at("run").addEventListener("change", () => { choose(); soon(); });
  at("verb").addEventListener("change", () => { fit(); soon(); });
  form.addEventListener("submit", event => {
    event.preventDefault();
    if (waiting && button.textContent === "Stop" && at("verb").value !== "inspect") waiting.abort();
    else now();
  });
  form.addEventListener("keydown", event => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); now(); }
  });
  choose();
  run();
});
