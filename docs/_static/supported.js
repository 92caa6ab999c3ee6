// The filter over all results: rows that have all the words that are typed, of the kinds that are ticked.
document.addEventListener("DOMContentLoaded", () => {
  const most = 200;
  const signs = { yes: "✓", but: "~", no: "✗", "-": "–" };
  const form = document.getElementById("supported");
  const [body, status, kinds] = ["tbody", "[role=status]", "fieldset"].map((part) => form.querySelector(part));
  const counts = new Map();
  for (const [kind] of RESULTS) counts.set(kind, (counts.get(kind) ?? 0) + 1);
  for (const [kind, count] of counts) {
    const label = document.createElement("label");
    const box = Object.assign(document.createElement("input"), { type: "checkbox", value: kind, checked: true });
    label.append(box, ` ${kind} (${count})`);
    kinds.append(label);
  }
  const text = (row) => row.slice(0, 4).join(" ").toLowerCase();
  const searched = RESULTS.map((row) => [text(row), row]);

  function show() {
    const words = form.elements.q.value.toLowerCase().split(/\s+/);
    const ticked = new Set([...kinds.querySelectorAll(":checked")].map((box) => box.value));
    const found = searched.filter(([text, [kind]]) => ticked.has(kind) && words.every((word) => text.includes(word)));
    body.replaceChildren(...found.slice(0, most).map(([, row]) => rowOf(row)));
    status.textContent = found.length > most ? `${most} of ${found.length} results` : `${found.length} results`;
  }

  function rowOf([kind, name, mark, result, link]) {
    const row = document.createElement("tr");
    const anchor = Object.assign(document.createElement("a"), { href: link, textContent: name });
    for (const content of [signs[mark], anchor, result, kind]) {
      const cell = document.createElement("td");
      cell.append(content);
      row.append(cell);
    }
    row.className = `result-${mark === "-" ? "none" : mark}`;
    return row;
  }

  form.addEventListener("input", show);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.elements.q.value = new URLSearchParams(location.search).get("q") ?? "";
  show();
});
