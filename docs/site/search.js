const pages = INDEX;
const box = document.getElementById("search"), hits = document.getElementById("hits");
box.addEventListener("input", () => {
  const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
  const score = s => words.every(w => s.text.includes(w)) ? words.filter(w => s.title.toLowerCase().includes(w)).length + 1 : 0;
  const found = words.length ? pages.map(s => [score(s), s]).filter(x => x[0]).sort((a, b) => b[0] - a[0]).slice(0, 12) : [];
  hits.replaceChildren(...found.map(([, s]) => {
    const item = document.createElement("li"), link = document.createElement("a");
    link.href = s.href; link.textContent = s.page && s.page !== s.title ? `${s.page}: ${s.title}` : s.title; item.append(link); return item;
  }));
});
