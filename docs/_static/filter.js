// Puts a filter above each long table: rows stay that have all the words that are typed.
document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll("article table:not(form *)")) {
    const rows = [...table.tBodies].flatMap((body) => [...body.rows]);
    if (rows.length < 20) continue;
    const input = document.createElement("input");
    input.type = "search";
    input.className = "table-filter";
    input.placeholder = `Filter ${rows.length} rows`;
    input.setAttribute("aria-label", input.placeholder);
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/);
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
      }
    });
    const container = table.closest(".pst-scrollable-table-container") ?? table;
    container.before(input);
  }
});
