"use strict";
addEventListener("DOMContentLoaded", () => {
  const at = id => document.getElementById(id);
  let kinds = JSON.parse(at("runs").textContent);
  const form = at("ask"), said = at("said"), button = form.querySelector("button");
  let waiting = null, shown = null;

  const tell = (text, wrong) => {
    said.textContent = text;
    said.classList.toggle("wrong", Boolean(wrong));
  };

  const ask = async (path, options) => {
    const headers = { "content-type": "application/json" };
    if (at("token").value) headers.authorization = `Bearer ${at("token").value}`;
    const answer = await fetch(path, { headers, ...options });
    const found = await answer.json();
    if (answer.status === 401) at("guarded").hidden = false;
    if (!answer.ok) throw new Error(found.error.message);
    return found;
  };

  // a server with a token names its runs only to those who have it
  const learn = async signal => {
    if (Object.keys(kinds).length) return;
    const found = await ask("v1/models", { signal });
    kinds = Object.fromEntries(found.data.map(one => [one.id, one.topology]));
    at("run").replaceChildren(...Object.keys(kinds).map(name => new Option(name, name)));
    choose();
  };

  // of several answers on their way only the last is wanted
  const look = async () => {
    if (!at("text").value) return;
    if (waiting) waiting.abort();
    const mine = waiting = new AbortController();
    tell("Looking …");
    button.disabled = true;
    try {
      await learn(mine.signal);
      const asked = { model: at("run").value, text: at("text").value };
      if (kinds[asked.model] === "encoder-decoder" && at("target").value) asked.target = at("target").value;
      const found = await ask("v1/inspect", { method: "POST", body: JSON.stringify(asked), signal: mine.signal });
      show(found, shown === asked.model ? chosenPlace() : "");
      shown = asked.model;
      const facts = Object.entries(found.facts).map(([name, value]) => `${name} ${value}`);
      const cut = found.cut ? [`${found.cut} more are left out`] : [];
      tell([...facts, `${found.tokens.length} tokens`, ...cut, `${found.maps.length} maps`].join(" · "));
    } catch (error) {
      if (error.name !== "AbortError") tell(error.message, true);
    } finally {
      if (mine === waiting) {
        waiting = null;
        button.disabled = false;
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
    timer = setTimeout(look, 500);
  };
  const choose = () => {
    at("targeted").hidden = kinds[at("run").value] !== "encoder-decoder";
  };
  at("text").addEventListener("input", soon);
  at("target").addEventListener("input", soon);
  at("token").addEventListener("change", () => learn().then(look, error => tell(error.message, true)));
  at("run").addEventListener("change", () => { choose(); look(); });
  form.addEventListener("submit", event => { event.preventDefault(); clearTimeout(timer); look(); });
  form.addEventListener("keydown", event => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); clearTimeout(timer); look(); }
  });
  choose();
  look();
});
