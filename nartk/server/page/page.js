"use strict";
// The page of nartk-serve: what is typed or dropped goes to /v1/decode, and its events are drawn as they come.
const MOST_STEP = 250, REPLAY = 2500; // ms of a pass, and of all passes, of a replay
const SHORT = 5; // s of both decodes, up to which each is run twice: the first of a strategy makes its tables
const ALIKE = 0.5; // share of source and output that both have, from which on they are compared
const IS_SOUND = /\.(wav|flac|ogg|opus|mp3|m4a|mp4|webm|aiff?|sph)$/i;
const REMEDIES = {
  401: "type a key of the server's under “API key”",
  413: "send less at once",
  429: "send it again in a moment",
  503: "wait until the server is there again",
  504: "send less at once, or start nartk-serve with a longer --deadline",
};
const state = { models: [], strategies: {}, sounds: [], outputs: [], stop: null, replay: null };

// Requests

class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function send(path, body, signal) {
  const headers = {};
  if (body) headers["Content-Type"] = "application/json";
  if (byId("key").value) headers.Authorization = `Bearer ${byId("key").value}`;
  let answer;
  try {
    answer = await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "the server cannot be reached. Fix: see whether nartk-serve runs, and try again");
  }
  if (answer.ok) return answer;
  const text = await answer.text();
  let message = text || `status ${answer.status}`;
  try {
    message = JSON.parse(text).error.message;
  } catch { /* no JSON: what is in front of the server has answered */ }
  throw refused(answer.status, message);
}

function refused(status, message) {
  const remedy = REMEDIES[status];
  return new Refused(status, remedy && !message.includes("Fix:") ? `${message}. Fix: ${remedy}` : message);
}

async function* eventsOf(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const events = text.split("\n\n");
    text = events.pop();
    for (const event of events) {
      const [name, data] = event.split("\n");
      yield [name.slice("event: ".length), JSON.parse(data.slice("data: ".length))];
    }
  }
}

async function decode(body, signal, draw = {}) {
  // The outputs of a request, in the order of its lines, and its seconds; `draw` takes events by name.
  const outputs = [];
  for await (const [name, data] of eventsOf(await send("v1/decode", { ...body, stream: true }, signal))) {
    if (name === "output") outputs[data.line] = data;
    if (name === "error") throw refused(data.code, data.message);
    if (name === "end") return { outputs, seconds: data.seconds };
    draw[name]?.(data);
  }
  throw new Refused(0, "the answer broke off. Fix: see whether nartk-serve still runs, and try again");
}

// The form

const model = () => state.models.find((each) => each.id === byId("model").value);
const readsSound = () => model()?.does === "transcribe";

function choices(select, names, labels = names) {
  select.replaceChildren(...names.map((name, at) => new Option(labels[at], name)));
}

async function load() {
  const [models, strategies] = await Promise.all(["v1/models", "v1/strategies"].map((path) => send(path)));
  state.models = (await models.json()).data;
  state.strategies = await strategies.json();
  choices(byId("model"), state.models.map(({ id }) => id), state.models.map(({ id, does }) => `${id}, to ${does}`));
  const asked = new URLSearchParams(location.hash.slice(1));
  if (state.models.some(({ id }) => id === asked.get("model"))) byId("model").value = asked.get("model");
  chooseModel(asked.get("strategy"));
}

function chooseModel(strategy) {
  const { strategies, strategy: usual } = model();
  choices(byId("strategy"), strategies);
  byId("strategy").value = strategies.includes(strategy) ? strategy : usual;
  byId("texts").hidden = readsSound();
  byId("sounds").hidden = !readsSound();
  chooseStrategy();
}

function chooseStrategy() {
  const name = byId("strategy").value;
  const { promise, options } = state.strategies[name];
  byId("promise").textContent = `Promise of ${name}: ${promise}.`;
  byId("options").replaceChildren(...Object.entries(options).map(drawOption));
  byId("options-part").hidden = !Object.keys(options).length;
  history.replaceState(history.state, "", `#${new URLSearchParams({ model: model().id, strategy: name })}`);
}

function drawOption([name, { default: usual, help, choices: known, low, high }]) {
  const box = make("div");
  const label = make("label", "", `${name} `);
  const field = known || typeof usual === "boolean" ? make("select") : make("input");
  if (field.tagName === "SELECT") {
    const values = known ?? [true, false];
    choices(field, ["", ...values.map(String)], [`default: ${usual}`, ...values.map(String)]);
  } else {
    field.type = typeof usual === "number" ? "number" : "text";
    field.step = "any";
    if (low !== null) field.min = low;
    if (high !== null) field.max = high;
    field.placeholder = usual === null ? "" : `${usual}`;
  }
  field.name = name;
  label.append(field);
  const note = make("p", "note", help);
  note.id = `help-${name}`;
  field.setAttribute("aria-describedby", note.id);
  box.append(label, note);
  return box;
}

function givenOptions() {
  const known = state.strategies[byId("strategy").value].options;
  const found = {};
  for (const { name, value } of byId("options").querySelectorAll("[name]")) {
    if (value === "") continue;
    const usual = known[name].default;
    if (typeof usual === "boolean") found[name] = value === "true";
    else found[name] = typeof usual === "string" || !Number.isFinite(Number(value)) ? value : Number(value);
  }
  return found;
}

// Files, chosen or dropped

function takeFiles(files) {
  const sounds = files.filter(({ name, type }) => /^(audio|video)\//.test(type) || IS_SOUND.test(name));
  return sounds.length ? takeSounds(sounds) : takeText(files[0]);
}

function switchTo(sound) {
  if (readsSound() === sound) return true;
  const found = state.models.find(({ does }) => (does === "transcribe") === sound);
  if (!found) {
    fail(new Refused(0, sound ? "no model here reads sound. Fix: serve one, such as asr-digits"
      : "no model here reads text. Fix: serve one, such as gec-en-medium"));
    return false;
  }
  byId("model").value = found.id;
  chooseModel();
  return true;
}

async function takeText(file) {
  if (!file || !switchTo(false)) return;
  try {
    byId("text").value = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    tell(`${file.name} is open.`);
    byId("text").focus();
  } catch {
    fail(new Refused(0, `${file.name} is no text in UTF-8. Fix: choose another file, or save it as UTF-8`));
  }
}

async function takeSounds(files) {
  if (!switchTo(true)) return;
  state.sounds = await Promise.all(files.map(async (file) => ({ name: file.name, data: await base64(file) })));
  byId("sound-names").replaceChildren(...state.sounds.map(({ name }) => make("li", "", name)));
  tell(`${plural(files.length, "sound")} chosen.`);
}

function base64(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.onerror = () => reject(new Refused(0, `${file.name} cannot be read. Fix: choose it again`));
    reader.readAsDataURL(file);
  });
}

// What a request shows

function tell(text) {
  byId("error").textContent = "";
  byId("status").textContent = text;
}

function fail(error) {
  byId("status").textContent = "";
  byId("error").textContent = error instanceof Refused ? `${error.message}.` : `The page failed: ${error.message}`;
  if (error.status === 401) {
    byId("key-part").open = true;
    byId("key").focus();
  }
}

async function run() {
  if (!state.models.length) await load();
  const text = byId("text").value;
  const names = readsSound() ? state.sounds.map(({ name }) => name) : text.replace(/\n$/, "").split("\n");
  if (readsSound() ? !names.length : !text) {
    throw new Refused(0, readsSound() ? "no sound is chosen. Fix: choose or drop a file" : "there is no text. Fix: type a line, or drop a file");
  }
  const source = readsSound() ? { sounds: state.sounds.map(({ data }) => data) } : { lines: names };
  const [strategy, options, { id, reference }] = [byId("strategy").value, givenOptions(), model()];
  const body = { ...source, model: id, strategy, options, trace: true, edits: !readsSound() && model().does !== "translate" };
  const { signal } = (state.stop = new AbortController());
  const corrects = model().does === "correct";
  begin(names);
  tell(`Decoding ${plural(names.length, "line")} …`);
  const own = await decode(body, signal, {
    partial: grow,
    output: (output) => {
      const line = (state.outputs[output.line] = lineOf(output, names[output.line], corrects));
      byId("list").children[output.line].replaceWith(drawArticle(line, output.line));
      writeOutputs();
    },
  });
  draw();
  if (!matchMedia("(prefers-reduced-motion: reduce)").matches) replay();
  let told = `${plural(names.length, "line")} decoded by ${strategy}`;
  if (byId("compare").checked && reference && reference !== strategy) {
    tell(`${told}; now by ${reference} …`);
    const known = state.strategies[reference].options;
    const shared = Object.fromEntries(Object.entries(options).filter(([name]) => name in known));
    const runs = [[{ ...body, trace: false }, own], [{ ...source, model: id, strategy: reference, options: shared }]];
    runs[1].push(await decode(runs[1][0], signal));
    const isShort = own.seconds + runs[1][1].seconds < SHORT;
    for (const run of isShort ? runs : []) {
      const again = await decode(run[0], signal);
      run[1] = { ...run[1], seconds: Math.min(run[1].seconds, again.seconds) };
    }
    compare([strategy, runs[0][1]], [reference, runs[1][1]], isShort);
    told += ` and by ${reference}`;
  }
  if (!state.outputs.some(({ drafted }) => drafted) && state.strategies[strategy].options.adaptive && options.adaptive !== false) {
    told += ". No draft paid here; with the option adaptive at false there are drafts all the same";
  }
  tell(`${told}.`);
}

function begin(names) {
  clearInterval(state.replay);
  byId("comparison").hidden = true;
  byId("results").hidden = false;
  byId("undoing").hidden = true;
  byId("outputs").value = "";
  byId("legend").replaceChildren();
  state.outputs = new Array(names.length);
  byId("list").replaceChildren(...names.map((name, at) => {
    const article = make("article");
    const source = make("p", "source", name);
    source.dir = "auto";
    article.append(make("b", "facts", `#${at + 1}`), source, make("p", "output"));
    return article;
  }));
}

function grow({ line, added }) {
  // Tokens of an output that goes on; their origins come with its end.
  const output = byId("list").children[line].querySelector(".output");
  output.dir = "auto";
  for (const piece of added) output.append(make("span", "token live", piece.replace(/^[▁Ġ]/, " ")));
}

function lineOf(output, source, corrects) {
  // A line as draw.js draws it, with the edits that are made.
  if (output.error) return { source, text: "", error: output.error };
  const trace = output.trace ?? [];
  const kept = (output.edits ?? []).reduce((sum, { length }) => sum - length, source.length);
  const isAlike = corrects || 2 * kept > ALIKE * (source.length + output.text.length);
  return {
    source, ...output,
    edits: isAlike ? (output.edits ?? []).map((edit) => ({ ...edit, made: true })) : [],
    output: trace.length ? output.tokens : [],
    origin: trace.map(({ origin }) => origin),
    pass: trace.map((each) => each.pass),
    margin: trace.map(({ margin }) => round(margin)),
    lprob: output.lprob?.map(round) ?? null,
    score: round(output.score),
    ms: round(1000 * output.seconds),
    nbest: (output.alternatives ?? []).map(({ text, score }) => [text, round(score)]),
    marked: output.tokens.some((piece) => /^[▁Ġ]/.test(piece)),
  };
}

const round = (number) => (number === null || number === undefined ? null : Number(number.toPrecision(4)));

function written(line) {
  // The output without the edits that are undone.
  if (!line.edits?.some(({ made }) => !made)) return line.text;
  return parts(line).map(([text, edit]) => (edit?.made ? edit.text : text)).join("");
}

function parts(line) {
  // The source in pieces, each with its edit where it has one.
  const found = [];
  let end = 0;
  for (const edit of line.edits) {
    found.push([line.source.slice(end, edit.offset)], [line.source.slice(edit.offset, edit.offset + edit.length), edit]);
    end = edit.offset + edit.length;
  }
  return [...found, [line.source.slice(end)]];
}

function drawChanges(line) {
  const source = make("p", "source");
  source.dir = "auto";
  for (const [text, edit] of line.edits?.length ? parts(line) : [[line.source]]) {
    source.append(edit ? drawEdit(line, text, edit) : text);
  }
  return source;
}

function drawEdit(line, before, edit) {
  const button = make("button", "edit");
  button.type = "button";
  button.title = "undo, or make again";
  button.setAttribute("aria-pressed", edit.made);
  button.setAttribute("aria-label", `edit: “${before}” becomes “${edit.text}”`);
  button.append(make("del", "", before), make("ins", "", edit.text));
  button.addEventListener("click", () => {
    edit.made = !edit.made;
    button.setAttribute("aria-pressed", edit.made);
    writeOutputs();
    tell(edit.made ? `Made again: “${before}” becomes “${edit.text}”.` : `Undone: “${before}” stays.`);
  });
  return button;
}

function writeOutputs() {
  byId("outputs").value = state.outputs.map(written).join("\n");
  byId("outputs").rows = Math.min(8, Math.max(2, state.outputs.length));
}

function drawArticle(line, at) {
  const article = make("article");
  const facts = make("div", "facts");
  facts.append(make("b", "", `#${at + 1}`));
  article.append(facts, drawChanges(line));
  if (line.error) {
    article.append(make("p", "error", line.error.message));
    return article;
  }
  facts.append(describeCounts(line).join(" · "));
  drawLine(article, line, byId("view").value);
  if (line.unaligned) article.append(make("p", "note", `No picture of the sound: ${line.unaligned.message}`));
  return article;
}

function draw() {
  clearInterval(state.replay);
  hideTip();
  state.outputs.forEach((line, at) => byId("list").children[at].replaceWith(drawArticle(line, at)));
  const origins = new Set(state.outputs.flatMap(({ origin }) => origin ?? []));
  byId("legend").replaceChildren(...[...origins].map((origin) => {
    const item = make("li");
    item.append(make("span", `token ${origin}`, origin), ` ${MEANING[origin]}`);
    return item;
  }));
  byId("undoing").hidden = !state.outputs.some(({ edits }) => edits?.length);
  byId("replay").disabled = byId("view").value === "passes";
  writeOutputs();
}

function replay() {
  // Shows the tokens again, pass by pass.
  clearInterval(state.replay);
  const tokens = [...byId("list").querySelectorAll(".token")];
  const last = Math.max(0, ...tokens.map(({ dataset }) => Number(dataset.pass)));
  let pass = 0;
  const step = () => {
    pass += 1;
    for (const token of tokens) {
      token.classList.toggle("later", Number(token.dataset.pass) > pass);
      token.classList.toggle("now", Number(token.dataset.pass) === pass && pass <= last);
    }
    if (pass > last) clearInterval(state.replay);
  };
  step();
  state.replay = setInterval(step, Math.min(MOST_STEP, REPLAY / Math.max(1, last)));
}

function compare(own, other, isTwice) {
  // Draws what a strategy and greedy search took, with the verdict in words.
  const sum = (outputs, key) => outputs.reduce((total, each) => total + (each[key] ?? 0), 0);
  const rows = [own, other].map(([name, { outputs, seconds }]) => {
    const tokens = outputs.reduce((total, each) => total + (each.tokens?.length ?? 0), 0);
    const [passes, drafted, accepted] = ["passes", "drafted", "accepted"].map((key) => sum(outputs, key));
    return { name, outputs, seconds, tokens, passes, drafted, accepted };
  });
  byId("comparison").querySelector("tbody").replaceChildren(...rows.map((each) => {
    const row = make("tr");
    const head = make("th", "", each.name);
    head.scope = "row";
    const accepted = each.drafted ? `${count(each.accepted)} of ${count(each.drafted)}` : "–";
    row.append(head, ...[count(each.passes), ratio(each.tokens, each.passes), accepted,
      `${round(1000 * each.seconds)} ms`].map((text) => make("td", "", text)));
    return row;
  }));
  const [mine, theirs] = rows;
  const differ = mine.outputs.filter(({ text }, at) => text !== theirs.outputs[at].text).length;
  const same = differ ? `${differ} of ${plural(mine.outputs.length, "output")} differ` : "The outputs are identical";
  byId("verdict").textContent = `${same}; ${theirs.name} takes ${ratio(theirs.passes, mine.passes)} times the passes of ${mine.name}, and ` +
    `${ratio(theirs.seconds, mine.seconds)} times its time${isTwice ? ", the shorter of two runs each" : ", in one run"}.`;
  byId("comparison").hidden = false;
}

// What is pressed, chosen and dropped

byId("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  if (byId("decode").ariaDisabled === "true") return;
  byId("decode").ariaDisabled = "true"; // disabled, it would lose the focus
  byId("stop").hidden = false;
  try {
    await run();
  } catch (error) {
    if (error.name === "AbortError") tell("Stopped.");
    else fail(error);
    draw(); // what had ended before
    byId("results").hidden = !state.outputs.some(Boolean);
  } finally {
    byId("decode").ariaDisabled = "false";
    byId("stop").hidden = true;
  }
});
byId("stop").addEventListener("click", () => {
  state.stop?.abort();
  byId("decode").focus();
});
byId("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("form").requestSubmit();
});
byId("model").addEventListener("change", () => chooseModel());
byId("strategy").addEventListener("change", chooseStrategy);
byId("view").addEventListener("change", draw);
byId("replay").addEventListener("click", replay);
byId("copy").addEventListener("click", async () => {
  byId("outputs").select();
  try {
    await navigator.clipboard.writeText(byId("outputs").value);
  } catch { // of a page that is not from this machine or by https
    document.execCommand("copy");
  }
  tell("Copied.");
});
byId("key").addEventListener("change", () => { if (!state.models.length) start(); });
byId("text-file").addEventListener("change", ({ target }) => { takeText(target.files[0]); });
byId("sound-files").addEventListener("change", ({ target }) => { if (target.files.length) takeSounds([...target.files]).catch(fail); });
for (const name of ["dragover", "dragleave", "drop"]) {
  addEventListener(name, (event) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    document.body.classList.toggle("dropping", name === "dragover");
    if (name === "drop") takeFiles([...event.dataTransfer.files])?.catch(fail);
  });
}

const start = () => load().then(() => tell(""), fail);
start();
