"use strict";
// adds to charts that are complete without it: the words of the nearest point, and legends that hide and show
(() => {
  for (const box of document.querySelectorAll("figure.chart")) {
    const svg = box.querySelector("svg");
    if (!svg) continue;
    const tip = document.createElement("div");
    tip.className = "tip";
    box.append(tip);
    const points = [...svg.querySelectorAll("circle")].filter(c => c.querySelector("title")).map(c => {
      const words = c.querySelector("title").textContent;
      c.querySelector("title").remove();
      return { c, words, x: c.cx.baseVal.value, y: c.cy.baseVal.value };
    });
    const leave = () => { tip.style.display = "none"; };
    svg.addEventListener("pointermove", event => {
      const area = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / area.width;
      const x = (event.clientX - area.left) * scale, y = (event.clientY - area.top) * scale;
      let best = null, distance = 60 ** 2;
      for (const p of points) {
        const d = (p.x - x) ** 2 + (p.y - y) ** 2;
        if (d < distance && !p.c.closest("[hidden]")) { best = p; distance = d; }
      }
      if (!best) return leave();
      tip.textContent = best.words;
      tip.style.display = "block";
      const left = svg.getBoundingClientRect().left - box.getBoundingClientRect().left + best.x / scale + 14;
      const over = left + tip.offsetWidth > box.clientWidth;
      tip.style.left = `${Math.max(4, over ? left - tip.offsetWidth - 28 : left)}px`;
      tip.style.top = `${area.top - box.getBoundingClientRect().top + best.y / scale - 12}px`;
    });
    svg.addEventListener("pointerleave", leave);
    for (const entry of box.querySelectorAll(".legend li")) {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...entry.childNodes);
      button.setAttribute("aria-pressed", "true");
      entry.append(button);
      button.addEventListener("click", () => {
        const hide = button.getAttribute("aria-pressed") === "true";
        button.setAttribute("aria-pressed", String(!hide));
        for (const part of svg.querySelectorAll("[data-name]"))
          if (part.dataset.name === entry.dataset.name) part.toggleAttribute("hidden", hide);
      });
    }
  }
})();
