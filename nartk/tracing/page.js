// The page of a trace: its figures, and its sentences, to be searched and sorted.
const data = JSON.parse(byId("data").textContent);
for (const line of data.lines) {
  line.marked = data.marked[line.of];
  line.origin = [...(line.origin ?? "")].map((digit) => data.origins[digit][0]);
}
const AT_ONCE = 40; // sentences drawn before the reader scrolls on

// Above the list

function drawTop() {
  byId("name").textContent = data.name;
  document.title = `${data.name} – nartk trace`;
  const warnings = [];
  if (data.failed) warnings.push(`${plural(data.failed, "line")} failed`);
  if (data.damaged) warnings.push(`${plural(data.damaged, "damaged line")} of the trace left out`);
  if (warnings.length) {
    byId("warning").textContent = `${warnings.join("; ")}.`;
    byId("warning").hidden = false;
  }
  const figures = [
    ["sentences", count(data.sentences)],
    ["tokens", count(data.tokens)],
    ["passes", count(data.passes)],
    ["tokens a pass", ratio(data.tokens, data.passes)],
    ["latency, median", `${data.latency.p50} ms`, "from a sentence's entry into its batch to its end"],
    ["tokens/s of a sentence", count(Math.round(data.tokensPerSecond)),
      "a sentence's tokens over the time from its entry into the batch to its end: larger batches look slower"],
  ];
  if (data.drafted) {
    figures.splice(4, 0, ["accepted a pass", ratio(data.accepted, data.passes), "drafted tokens that stood"]);
    figures.splice(5, 0, ["drafts accepted", percent(data.accepted, data.drafted),
      `${count(data.accepted)} of ${count(data.drafted)} drafted tokens`]);
  }
  for (const [name, value, title] of figures) {
    const box = make("div");
    if (title) box.title = title;
    box.append(make("dt", "", name), make("dd", "", value));
    byId("summary").append(box);
  }
  const total = data.origins.reduce((sum, [, number]) => sum + number, 0);
  for (const [name, number] of data.origins) {
    if (total && !number) continue;
    const item = make("li");
    const sample = make("span");
    sample.append(make("span", `token ${name}`, name));
    item.append(sample, make("span", "", MEANING[name]),
      make("span", "count", `${count(number)} (${percent(number, total)})`));
    byId("legend").append(item);
  }
  byId("changes").hidden = !data.lines.some((line) => line.diff);
  drawHistogram();
  for (const signature of data.signatures) byId("signatures").lastElementChild.append(make("li", "", signature));
}

function drawHistogram() {
  const box = byId("histogram");
  const most = Math.max(1, ...data.bars.map(([, , number]) => number));
  const every = Math.ceil(data.bars.length / 16); // labels that fit
  data.bars.forEach(([low, high, number], place) => {
    const name = low === high ? `${low}` : `${low}–${high}`;
    const bin = make("div", "bin");
    bin.title = `${plural(number, "pass")} settled ${name} ${high === 1 ? "token" : "tokens"}`.replace("passs", "passes");
    const bar = make("div", "bar");
    bar.style.height = `${(number / most) * 80}%`;
    if (number) bar.style.minHeight = "1px";
    bin.append(make("span", "value", data.bars.length <= 16 ? count(number) : ""), bar,
      make("span", "value", place % every ? "\u00a0" : `${low}`));
    box.append(bin);
  });
  box.setAttribute("aria-label", data.bars
    .map(([low, high, number]) => `${low === high ? low : `${low} to ${high}`} tokens: ${number} passes`).join("; "));
}

// A sentence

function drawSource(line) {
  const source = make("p", "source");
  source.dir = "auto";
  for (const [mark, text] of line.diff ?? [["", line.source]]) {
    if (source.firstChild) source.append(" ");
    source.append(mark ? make(mark, "", text) : text);
  }
  return source;
}

function drawSentence(place, view) {
  const line = data.lines[place];
  const article = make("article");
  const facts = make("div", "facts");
  facts.append(make("b", "", `#${line.line}`));
  if (line.id !== undefined) facts.append(`${line.id} · `);
  article.append(facts);
  if (line.error) {
    const { code, name, where, message, fix } = line.error;
    article.append(make("p", "error", `${code} ${name}: ${where ? `${where}: ` : ""}${message}${fix ? `. Fix: ${fix}.` : ""}`));
    return article;
  }
  const told = describeCounts(line);
  if (data.signatures.length > 1) told.push(data.signatures[line.of].split("|")[0]);
  facts.append(told.join(" · "));
  article.append(drawSource(line));
  drawLine(article, line, view);
  return article;
}

// The list: what is searched for, in order, drawn as the reader scrolls

const state = { q: "", sort: "line", view: "tokens" };
let shown = [];
let drawn = 0;

const per = (line) => (line.error || !line.passes ? -1 : line.output.length / line.passes);
const least = (numbers) => Math.min(Infinity, ...(numbers || []).filter((number) => number !== null));
const ORDERS = {
  line: () => 0,
  passes: (line) => -(line.passes || 0),
  fast: (line) => -per(line),
  slow: (line) => (per(line) < 0 ? Infinity : per(line)),
  margin: (line) => least(line.margin),
  lprob: (line) => least(line.lprob),
};
const texts = new Map();

function textOf(place) {
  if (!texts.has(place)) {
    const line = data.lines[place];
    const parts = line.error ? [line.id, ...Object.values(line.error)] : [line.id, line.source, line.text];
    texts.set(place, parts.filter((part) => part !== undefined).join("\n").toLowerCase());
  }
  return texts.get(place);
}

function choose() {
  const wanted = state.q.trim().toLowerCase();
  const number = /^#\d+$/.test(wanted) ? Number(wanted.slice(1)) : null;
  const places = [...data.lines.keys()].filter((place) =>
    number !== null ? data.lines[place].line === number : textOf(place).includes(wanted));
  const keys = new Map(places.map((place) => [place, ORDERS[state.sort](data.lines[place])]));
  // Infinity minus itself is no number.
  shown = places.sort((a, b) => (keys.get(a) === keys.get(b) ? a - b : keys.get(a) < keys.get(b) ? -1 : 1));
  drawn = 0;
  byId("list").replaceChildren();
  byId("count").textContent = shown.length === data.lines.length
    ? plural(shown.length, "line") : `${count(shown.length)} of ${plural(data.lines.length, "line")}`;
  hideTip();
  drawMore();
}

function drawMore() {
  const part = document.createDocumentFragment();
  for (const place of shown.slice(drawn, drawn + AT_ONCE)) part.append(drawSentence(place, state.view));
  drawn = Math.min(shown.length, drawn + AT_ONCE);
  byId("list").append(part);
}

new IntersectionObserver((entries, observer) => {
  if (!entries.some((entry) => entry.isIntersecting) || drawn >= shown.length) return;
  drawMore();
  // The end may still be in sight: be told again.
  observer.unobserve(byId("more"));
  observer.observe(byId("more"));
}, { rootMargin: "600px" }).observe(byId("more"));

// The address keeps what is shown, so that it can be passed on: #q=...&sort=...&view=...

function readAddress() {
  const asked = new URLSearchParams(location.hash.slice(1));
  state.q = asked.get("q") ?? "";
  for (const name of ["sort", "view"]) {
    const value = asked.get(name);
    state[name] = [...byId(name).options].some((option) => option.value === value) ? value : byId(name).options[0].value;
    byId(name).value = state[name];
  }
  byId("search").value = state.q;
  choose();
}

function change(name, value) {
  state[name] = value;
  const asked = new URLSearchParams();
  if (state.q) asked.set("q", state.q);
  if (state.sort !== "line") asked.set("sort", state.sort);
  if (state.view !== "tokens") asked.set("view", state.view);
  history.replaceState(null, "", `#${asked}`);
  choose();
}

byId("search").addEventListener("input", (event) => change("q", event.target.value));
byId("sort").addEventListener("change", (event) => change("sort", event.target.value));
byId("view").addEventListener("change", (event) => change("view", event.target.value));
addEventListener("hashchange", readAddress);

drawTop();
readAddress();
