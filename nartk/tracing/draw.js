"use strict";
// What draws outputs, in the page of a trace and in that of nartk-serve. A line is an object with the keys of a trace
// (nartk/tracing/__init__.py), `marked` if its pieces mark the space before them, `ms`, and for a recording `speech`.
// Text reaches a page by textContent alone: nothing in it is ever read as markup.
const byId = (id) => document.getElementById(id);
const MEANING = {
  draft: "drafted and accepted",
  verifier: "the verifier's own",
  rollback: "the verifier's, in the place of a drafted token that it took back",
  prefix: "forced by the prefix",
  model: "a non-autoregressive model's",
};
const SPECIAL = /^<.*>$/;
const CONTEXT = 3; // tokens shown before what a pass settled

function make(tag, name, text) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  if (text !== undefined) element.textContent = text;
  return element;
}

function shape(tag, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

const count = (number) => number.toLocaleString("en");
const plural = (number, what) => `${count(number)} ${what}${number === 1 ? "" : "s"}`;
const ratio = (number, of) => (of ? (number / of).toFixed(2) : "–");
const percent = (number, of) => (of ? `${((100 * number) / of).toFixed(1)} %` : "–");
const nats = (number) => (number === null ? "not known" : `${number} nats`);

// A sentence

function spell(line, at) {
  // A piece as it is read: whether a space comes before it, and its text.
  const piece = line.output[at];
  if (!line.marked) return [at > 0, piece];
  if (piece[0] !== "▁" && piece[0] !== "Ġ") return [SPECIAL.test(piece), piece];
  return [at > 0, piece.length > 1 ? piece.slice(1) : "␣"];
}

function drawToken(line, at) {
  const [, text] = spell(line, at);
  const origin = line.origin[at];
  const token = make("span", `token ${origin}`, text);
  if (SPECIAL.test(line.output[at])) token.classList.add("special");
  token.tabIndex = -1;
  token.dataset.at = at;
  token.dataset.pass = line.pass[at];
  return token;
}

function describeToken(line, at) {
  const lprob = line.lprob === null ? null : line.lprob[at];
  const chance = lprob === null ? "" : ` (${(100 * Math.exp(lprob)).toPrecision(3)} %)`;
  const origin = line.origin[at];
  return [
    line.output[at],
    `${origin}: ${MEANING[origin]}`,
    `pass ${line.pass[at] || "not counted"} of ${line.passes}`,
    `margin ${nats(line.margin[at])}`,
    `log-probability ${nats(lprob)}${chance}`,
  ].join("\n");
}

function drawOutput(line) {
  const output = make("p", "output");
  output.dir = "auto";
  line.output.forEach((_, at) => {
    const turns = at > 0 && line.pass[at] !== line.pass[at - 1];
    if (spell(line, at)[0]) output.append(" ");
    if (turns) output.append(make("span", "turn"));
    output.append(drawToken(line, at));
  });
  if (!line.output.length) output.append(make("span", "before", "nothing"));
  return output;
}

function drawPasses(line) {
  const list = make("ol", "passes");
  const settled = new Map();
  line.pass.forEach((number, at) => {
    if (!settled.has(number)) settled.set(number, []);
    settled.get(number).push(at);
  });
  const most = Math.max(1, ...[...settled.values()].map((places) => places.length));
  for (const number of [...settled.keys()].sort((a, b) => a - b)) {
    const places = settled.get(number);
    const row = make("li");
    const meter = make("span", "meter");
    const bar = make("i");
    bar.style.width = `${(100 * places.length) / most}%`;
    meter.append(bar);
    const text = make("span", "output");
    text.dir = "auto";
    let before = -1; // the last place that is written
    for (const at of places) {
      if (at > before + 1) {
        let from = Math.max(before + 1, at - CONTEXT);
        while (from > before + 1 && at - from < 2 * CONTEXT && !spell(line, from)[0]) from -= 1; // to a word's beginning
        let context = from > before + 1 ? "…" : "";
        for (let i = from; i < at; i += 1) {
          const [space, word] = spell(line, i);
          context += (space ? " " : "") + word;
        }
        text.append(make("span", "before", context));
      }
      if (spell(line, at)[0]) text.append(" ");
      text.append(drawToken(line, at));
      before = at;
    }
    row.append(make("span", "number", number ? `${number}` : "–"), make("span", "settled", `${places.length}`), meter, text);
    row.firstChild.title = number ? `pass ${number}` : "not counted";
    row.children[1].title = plural(places.length, "token");
    list.append(row);
  }
  return list;
}

function describeCounts(line) {
  const told = [plural(line.output.length, "token"), `${count(line.passes)} ${line.passes === 1 ? "pass" : "passes"}`];
  if (line.passes) told.push(`${ratio(line.output.length, line.passes)} tokens a pass`);
  if (line.drafted) told.push(`${line.accepted} of ${line.drafted} drafted accepted`);
  if (line.passes) told.push(`${line.ms} ms`);
  if (line.score !== null) told.push(`score ${line.score}`);
  return told;
}

const lines = new WeakMap(); // of each article its line

function drawLine(article, line, view) {
  // The output, and what there is besides: speech, further outputs, a graph.
  lines.set(article, line);
  const output = view === "passes" && line.output.length ? drawPasses(line) : drawOutput(line);
  article.append(output);
  const first = output.querySelector(".token");
  if (first) first.tabIndex = 0;
  if (line.speech) article.append(drawSpeech(line.speech, line.marked, line.speech.probs || line.speech.weights ? null : line.graph));
  if (line.nbest.length) {
    article.append(fold(plural(line.nbest.length, "further output"), () => {
      const list = make("ol", "others");
      list.start = 2;
      for (const [text, score] of line.nbest) {
        const item = make("li", "", score === null ? text : `${text} (${score})`);
        item.dir = "auto";
        list.append(item);
      }
      return list;
    }));
  }
  if (line.graph) {
    const shown = line.graph.vertices.length;
    article.append(fold(`graph: ${shown} of ${line.graph.size} vertices`, () => drawGraph(line.graph)));
  }
}

function fold(title, draw) {
  // Drawn when it is opened first.
  const details = make("details");
  details.append(make("summary", "", title));
  details.addEventListener("toggle", () => {
    if (details.open && details.childElementCount === 1) details.append(draw());
  });
  return details;
}

// A graph: the path's vertices on a line above, the others on one below, links between the lines

function drawGraph(graph) {
  const STEP = 44, TOP = 96, LOW = 206, HEIGHT = 300, LEFT = 30;
  const x = new Map(graph.vertices.map((vertex, i) => [vertex, LEFT + i * STEP]));
  const width = LEFT + graph.vertices.length * STEP + 60;
  const box = make("div", "graph");
  box.tabIndex = 0; // so that the arrow keys scroll it
  const svg = shape("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img" });
  svg.setAttribute("aria-label", describePath(graph));
  drawVertices(svg, graph, (vertex) => x.get(vertex), TOP, LOW);
  box.append(svg);
  return box;
}

const describePath = (graph) => `${graph.vertices.length} vertices, path ${graph.path.join(" ") || "none"}`;

function drawVertices(svg, graph, x, TOP, LOW) {
  const path = new Set(graph.path.length ? graph.path : graph.vertices);
  const emitted = new Map(graph.path.slice(1).map((vertex, i) => [vertex, graph.emitted[i]]));
  const y = (vertex) => (path.has(vertex) ? TOP : LOW);
  const next = new Map(graph.path.slice(1).map((vertex, i) => [graph.path[i], vertex]));
  for (const [from, to, lprob] of graph.links) {
    if (next.get(from) === to) continue;
    const [a, b] = [x(from), x(to)];
    // Links on a line bend into the space between the lines.
    const bend = Math.min(90, 14 + (b - a) / 7);
    const middle = y(from) !== y(to) ? (y(from) + y(to)) / 2 : y(from) + (y(from) === TOP ? bend : -bend);
    const link = shape("path", {
      class: "link", d: `M${a} ${y(from)}Q${(a + b) / 2} ${middle} ${b} ${y(to)}`,
      "stroke-opacity": Math.max(0.15, Math.exp(lprob === null ? 0 : lprob)).toFixed(2),
    });
    svg.append(link);
  }
  for (const [from, to] of next) {
    svg.append(shape("path", { class: "path", d: `M${x(from)} ${TOP}L${x(to)} ${TOP}` }));
  }
  graph.vertices.forEach((vertex, i) => {
    const group = shape("g", { class: path.has(vertex) && graph.path.length ? "vertex on" : "vertex", tabindex: -1 });
    group.append(shape("circle", { cx: x(vertex), cy: y(vertex), r: 6 }));
    const words = graph.words[i];
    const word = emitted.get(vertex) ?? (words.length ? words[0][0] : vertex === 0 ? "start" : "");
    const below = !path.has(vertex);
    const at = `${x(vertex) + 3} ${y(vertex) + (below ? 18 : -12)}`;
    const label = shape("text", { transform: `translate(${at}) rotate(${below ? 45 : -45})` });
    label.textContent = word.length > 14 ? `${word.slice(0, 13)}…` : word;
    group.append(label);
    group.dataset.tip = describeVertex(graph, vertex, words, emitted.get(vertex));
    svg.append(group);
  });
}

function describeVertex(graph, vertex, words, emitted) {
  const chance = (lprob) => (lprob === null ? "" : ` ${(100 * Math.exp(lprob)).toPrecision(3)} %`);
  const lines = [`vertex ${vertex} of ${graph.size}`];
  if (emitted !== undefined) lines.push(`emits ${emitted}`);
  if (words.length) lines.push(`words: ${words.map(([word, lprob]) => word + chance(lprob)).join(", ")}`);
  const next = graph.links.filter(([from]) => from === vertex).sort((a, b) => b[2] - a[2]);
  if (next.length) lines.push(`next: ${next.map(([, to, lprob]) => `${to}${chance(lprob)}`).join(", ")}`);
  return lines.join("\n");
}

// Speech: the spectrogram with the tokens, and below it over seconds CTC's posteriors, the weights of fires, or a
// graph, whose vertices are at no time and lie evenly

function drawSpeech(speech, marked, graph) {
  const SECOND = Math.max(160, Math.min(400, 960 / speech.seconds)), LEFT = 34, TOP = 56, HIGH = 120, LOW = 206, CURVES = graph ? 260 : 100, HEIGHT = LOW + CURVES + 28;
  const right = LEFT + speech.seconds * SECOND, width = right + 40;
  const x = (seconds) => (LEFT + seconds * SECOND).toFixed(1);
  const y = (share) => (LOW + CURVES * (1 - Math.min(1, Math.max(0, share)))).toFixed(1);
  const plain = (piece) => (marked && piece.length > 1 ? piece.replace(/^[▁Ġ]/, "") : piece);
  const center = (at) => x((at + 0.5) * speech.position);
  const span = (begin, end) => `${begin.toFixed(2)} to ${end.toFixed(2)} s`;
  const box = make("div", "graph");
  box.tabIndex = 0; // so that the arrow keys scroll it
  const svg = shape("svg", { class: "speech", width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img" });
  svg.setAttribute("aria-label", speech.tokens.map(([word, begin, end]) => `${plain(word)} ${span(begin, end)}`).join(", ") || (graph ? describePath(graph) : "no token"));
  const write = (into, text, attributes) => {
    const element = shape("text", attributes);
    element.textContent = text;
    into.append(element);
  };
  svg.append(shape("image", {
    x: LEFT, y: TOP, width: right - LEFT, height: HIGH, preserveAspectRatio: "none", href: `data:image/png;base64,${speech.image}`,
  }));
  for (const [share, label] of graph ? [] : [[0, "0"], [0.5, "½"], [1, "1"]]) {
    svg.append(shape("path", { class: "grid", d: `M${LEFT} ${y(share)}H${right}` }));
    write(svg, label, { x: LEFT - 6, y: Number(y(share)) + 4, "text-anchor": "end" });
  }
  const step = speech.seconds > 20 ? 1 : 0.5;
  for (let tick = 0; tick * step <= speech.seconds; tick += 1) {
    svg.append(shape("path", { class: "grid", d: `M${x(tick * step)} ${LOW + CURVES}v5` }));
    write(svg, `${tick * step}${tick ? "" : " s"}`, { x: x(tick * step), y: LOW + CURVES + 18, "text-anchor": "middle" });
  }
  write(svg, `${speech.bands} bands`, { transform: `translate(${LEFT - 8} ${TOP + HIGH / 2}) rotate(-90)`, "text-anchor": "middle" });
  const line = (values) => values.map((share, at) => `${at ? "L" : "M"}${center(at)} ${y(share)}`).join("");
  const curve = (values, name, tip) => {
    const path = shape("path", { class: `curve ${name}`, d: line(values) });
    path.dataset.tip = tip;
    svg.append(path);
  };
  if (graph) {
    const place = (vertex) => Number(x(((vertex + 0.5) / graph.size) * speech.seconds));
    drawVertices(svg, graph, place, LOW + 75, LOW + 185);
  } else if (speech.weights) {
    const bar = (speech.position * SECOND).toFixed(1);
    speech.weights.forEach((weight, at) => {
      svg.append(shape("rect", { class: "weight", x: x(at * speech.position), y: y(weight), width: bar, height: LOW + CURVES - y(weight) }));
    });
    for (const at of speech.fires) svg.append(shape("path", { class: "fire", d: `M${center(at)} ${LOW}V${LOW + CURVES}` }));
    curve(speech.sums, "rest", "sum since the last fire");
  } else {
    curve(speech.blank, "rest", "blank");
    curve(speech.other, "rest other", "other words");
    speech.probs.forEach((values, word) => {
      const name = `word${word % 4}`;
      svg.append(shape("path", { class: `area ${name}`, d: `${line(values)}L${center(values.length - 1)} ${y(0)}L${center(0)} ${y(0)}Z` }));
      curve(values, name, plain(speech.tokens.find((token) => token[3] === word)[0]));
    });
  }
  for (const [piece, begin, end, number] of speech.tokens) {
    const word = plain(piece);
    const group = shape("g", { class: `vertex heard word${number % 4}`, tabindex: -1 });
    group.dataset.tip = `${word}\n${span(begin, end)}`;
    group.append(shape("rect", { x: x(begin), y: TOP, width: Math.max(1, (end - begin) * SECOND), height: HIGH }));
    group.append(shape("path", { d: `M${x(begin)} ${TOP - 4}V${LOW + CURVES}` }));
    write(group, word.length > 14 ? `${word.slice(0, 13)}…` : word, { transform: `translate(${x(begin)} ${TOP - 8}) rotate(-25)` });
    svg.append(group);
  }
  box.append(svg, make("p", "note", graph ? "The graph's vertices lie evenly under the sound; its path is thick." : speech.weights
    ? "Bars: a Paraformer's weights; grey: their sum since the last fire; dashed: the fires, each a token."
    : "CTC's posteriors; grey: the blank; dotted: words that are not output."));
  return box;
}

// Tokens and vertices: what they tell, by mouse and by keyboard

function showTip(element) {
  const tip = byId("tip");
  hideTip();
  if (element.dataset.tip !== undefined) {
    tip.textContent = element.dataset.tip;
  } else {
    tip.textContent = describeToken(lines.get(element.closest("article")), Number(element.dataset.at));
    for (const other of element.closest("article").querySelectorAll(".token")) {
      if (other.dataset.pass === element.dataset.pass) other.classList.add("same");
    }
  }
  tip.hidden = false;
  element.setAttribute("aria-describedby", "tip");
  const where = element.getBoundingClientRect();
  const low = where.bottom + 8 + tip.offsetHeight > innerHeight;
  tip.style.left = `${Math.max(4, Math.min(where.left, innerWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${low ? where.top - tip.offsetHeight - 8 : where.bottom + 8}px`;
}

function hideTip() {
  byId("tip").hidden = true;
  for (const element of document.querySelectorAll("[aria-describedby=tip]")) element.removeAttribute("aria-describedby");
  for (const element of document.querySelectorAll(".token.same")) element.classList.remove("same");
}

const TELLS = "article .token, article .vertex, article .curve";
const told = (event) => (event.target instanceof Element ? event.target.closest(TELLS) : null);
document.addEventListener("pointerover", (event) => { if (told(event)) showTip(told(event)); });
document.addEventListener("pointerout", (event) => { if (told(event)) hideTip(); });
document.addEventListener("focusin", (event) => { if (told(event)) showTip(told(event)); });
document.addEventListener("focusout", (event) => { if (told(event)) hideTip(); });
addEventListener("scroll", () => {
  const token = document.activeElement.closest(TELLS);
  if (token && !byId("tip").hidden) showTip(token); else hideTip(); // one that Escape has closed stays so
}, { passive: true });

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") hideTip();
  const token = event.target instanceof Element ? event.target.closest("article .token") : null;
  if (!token || event.ctrlKey || event.altKey || event.metaKey) return;
  const all = [...token.closest("article").querySelectorAll(".token")];
  const to = { ArrowLeft: all.indexOf(token) - 1, ArrowRight: all.indexOf(token) + 1, Home: 0, End: all.length - 1 }[event.key];
  if (to === undefined || !all[to]) return;
  event.preventDefault();
  token.tabIndex = -1;
  all[to].tabIndex = 0;
  all[to].focus();
});
