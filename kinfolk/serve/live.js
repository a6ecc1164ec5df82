"use strict";
addEventListener("DOMContentLoaded", () => {
  const at = id => document.getElementById(id);
  const kinds = JSON.parse(at("runs").textContent);
  const form = at("ask"), said = at("said"), button = form.querySelector("button");
  let waiting = null, shown = null;

  const tell = (text, wrong) => {
    said.textContent = text;
    said.classList.toggle("wrong", Boolean(wrong));
  };

  // of several answers on their way only the last is wanted
  const look = async () => {
    const asked = { model: at("run").value, text: at("text").value };
    if (!asked.text) return;
    if (kinds[asked.model] === "encoder-decoder" && at("target").value) asked.target = at("target").value;
    if (waiting) waiting.abort();
    const mine = waiting = new AbortController();
    const headers = { "content-type": "application/json" };
    if (at("token").value) headers.authorization = `Bearer ${at("token").value}`;
    tell("Looking …");
    button.disabled = true;
    try {
      const answer = await fetch("v1/inspect", { method: "POST", headers, body: JSON.stringify(asked), signal: mine.signal });
      const found = await answer.json();
      if (answer.status === 401) at("guarded").hidden = false;
      if (!answer.ok) throw new Error(found.error.message);
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
  at("run").addEventListener("change", () => { choose(); look(); });
  form.addEventListener("submit", event => { event.preventDefault(); clearTimeout(timer); look(); });
  form.addEventListener("keydown", event => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); clearTimeout(timer); look(); }
  });
  choose();
  look();
});
