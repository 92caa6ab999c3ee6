// How the search orders what it finds: headings and names before text, guides before tutorials and descriptions of the inside.
var Scorer = {
  score: ([page, title, anchor, description, score, file, kind]) => {
    const inside = ["how-it-works", "in-depth", "glossary", "contributing"];
    if (kind === "title" || kind === "index" || kind === "object") score += 20;
    if (page === "faq" || page === "key-ideas" || page === "using") score += 2;
    if (page.startsWith("tutorials/")) score -= 2;
    return inside.includes(page) ? score - 10 : score;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 30,
  partialTitle: 10,
  term: 5,
  partialTerm: 2,
};
