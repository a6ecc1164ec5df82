"use strict";
// limits of the chooser: a slider goes through the values that contestants have, from strict to any
(() => {
  const box = document.getElementById("chooser");
  const { names, criteria } = JSON.parse(document.getElementById("criteria").textContent);
  const levels = criteria.map(c => {
    const all = Object.entries(c.values).sort((a, b) => (c.most ? a[1] - b[1] : b[1] - a[1]));
    return [...new Map(all.map(([name, value]) => [value, c.words[name]]))];
  });
  const sliders = criteria.map((_, i) => document.getElementById(`limit-${i}`));
  const apply = () => {
    const left = names.filter(name => criteria.every((c, i) => {
      const [limit, words] = levels[i][Number(sliders[i].value)];
      const open = Number(sliders[i].value) === levels[i].length - 1;
      sliders[i].parentElement.querySelector("output").textContent = open ? "any" : words;
      const value = c.values[name];
      return open || (value !== undefined && (c.most ? value <= limit : value >= limit));
    }));
    document.getElementById("remaining").textContent = left.length === names.length ? "All contestants remain."
      : left.length ? `${left.length} of ${names.length} remain, best first: ${left.join(", ")}.` : "No contestant meets all limits.";
    for (const row of document.querySelectorAll("#result tr[data-name]"))
      row.classList.toggle("out", names.includes(row.dataset.name) && !left.includes(row.dataset.name));
  };
  for (const slider of sliders) slider.addEventListener("input", apply);
  box.hidden = false;
  apply();
})();
