"""The guard of models whose output should resemble its input: what it takes, cuts, keeps and undoes."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import tiny
from support.parallel_drafters import write_network

import nartk
from nartk.cli.convert import main as convert
from nartk.cli.decode import main as decode
from nartk.cli.verify import main as verify
from nartk.data.clauses import Clause, clauses
from nartk.data.text import tokenize
from nartk.engine import available
from nartk.errors import CheckpointError, InputTooLongError, PassError, UsageError
from nartk.files import sha256
from nartk.processors.guard import BOUNDS, Guard, Thresholds, letters_kept, repeated, words_lost
from nartk.protocols.runs import Batching
from nartk.serving import Session
from nartk.serving.line_runs import LineRequest, LineRun, line_requests

needs_engine = pytest.mark.skipif(not available(), reason="there is no engine here")
OPEN = Thresholds(-99, -99, 0, 99, 1e9, 0, 0, 1, 0)
SOME = """a and go goes had he home I is London my name not park run school she the to was
what your"""
WORDS = SOME.split()
# Misspellings of which there are several readings, and what they stand between.
READINGS = """
restraunt gorrilla sunmer palce creat thas villians remein ther conceder inforced emphesize warker tast mang
carree concetrate turm brang organice
"""
MISSPELT = READINGS.split()
AROUND = [("I think the", "was good"), ("They want to", "it again"), ("We saw a", "in London")]
KNOWN = {word.lower(): word for word in WORDS}

RUN_ON = (
    "yesterday my friend and I went to the park near the station because the weather was good and we played "
    "football with some people that we met there and after that we was very tired so we sat down under a "
    "tree and ate the sandwiches that her mother had made for us and then a dog came and it wanted to eat "
    "with us but my friend do not like dogs so she stood up and walked away and I stayed with the dog and "
    "gave it some bread and it was very happy and followed me until I reached the bus which was late as ever"
)
TWICE = f"{RUN_ON} and {RUN_ON}"
# Lines and what must come of them, by hand.
BY_HAND = [
    ("What is your name?My name is Anna.", "What is your name? My name is Anna."),
    ("Is this your book?It are big.", "Is this your book? It is big."),
    ("They is here!we are happy.", "They are here! We are happy."),
    ("I have a dog.He are big.", "I have a dog. He is big."),
    ("SHE HAVE A BIG DOG.", "SHE HAS A BIG DOG."),
    ("IT'S COLD IN LONDON AND I AM TIRED.", "IT'S COLD IN LONDON AND I AM TIRED."),
    ("Yahoo!Answers is a site.", "Yahoo!Answers is a site."),
    ("The U.S.A is big.", "The U.S.A is big."),
    ("I said what?!", "I said what?!"),
    ("Hi.", "Hi."),
    ("Vladi.", "Vladi."),
    ("My name is Bill Gottlieb.", "My name is Bill Gottlieb."),
    ("Nowadays, we are happy.", "Nowadays, we are happy."),
    ("if x == y: return System.Out", "if x == y: return System.Out"),
    ("for i in range(10):", "for i in range(10):"),
    ('grep -rn "todo" src/ | wc -l', 'grep -rn "todo" src/ | wc -l'),
    ("const f = (x) => x ** 2;", "const f = (x) => x ** 2;"),
]


def words(text: str) -> Counter[str]:
    return Counter(re.findall(r"[^\W\d_]+", text.lower()))


def lost(source: str, output: str) -> float:
    """The share of a text's words that another one lacks."""
    before = words(source)
    return (before - words(output)).total() / before.total()


@pytest.fixture(scope="module")
def model() -> nartk.Model:
    return nartk.load("gec-en", threads=1)


def with_guard(folder: Path, **changes: Any) -> Path:
    """Gives a model folder a guard that takes all, but for the thresholds named."""
    (folder / "words.txt").write_text(SOME.replace(" ", "\n"))
    config = json.loads((folder / "config.json").read_text())
    config["files"]["words.txt"] = sha256(folder / "words.txt")
    limits = {name: getattr(OPEN, name) for name in (*BOUNDS, "edit")}
    config["guard"] = {**limits, "list": "words.txt", **changes}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


# The shipped model


@needs_engine
def test_what_must_come_out_by_hand(model: nartk.Model) -> None:
    found = model.decode([line for line, _ in BY_HAND], batch_size=4)
    assert [each.text for each in found] == [wanted for _, wanted in BY_HAND]


@needs_engine
@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("I has a dog 🙂 and he likes me.", "I have a dog 🙂 and he likes me."),
        ("It are 20 °C here.", "It is 20 °C here."),
        ("She have a naïve idea.", "She has a naïve idea."),
        ("She go to Łódź today.", "She went to Łódź today."),
        ("They has a house in 北京.", "They have a house in 北京."),
        ("They has two dogs🙂🎉 and a cat 🎉.", "They have two dogs🙂🎉 and a cat 🎉."),
    ],
)
def test_what_the_model_cannot_spell_stays_and_the_rest_is_mended(
    model: nartk.Model, line: str, wanted: str
) -> None:
    (best,) = model.decode([line])
    assert best.text == wanted
    assert not any(each.done == "kept" for each in best.guarded)


@needs_engine
def test_a_run_on_sentence_keeps_its_words(model: nartk.Model) -> None:
    """Without the guard it ends in a phrase said again and again, or loses words."""
    one, two = model.decode([RUN_ON, TWICE])
    for line, best in [(RUN_ON, one), (TWICE, two)]:
        assert lost(line, best.text) < 0.1
        assert len(best.text.split()) < 1.1 * len(line.split())
        assert "it wanted to eat with us but my friend" in best.text
        assert "it was very happy and followed me" in best.text
        assert any(each.done == "split" for each in best.guarded)
        assert not any(each.done == "kept" for each in best.guarded)


@needs_engine
def test_capitals_are_read_as_small_letters_and_stay(model: nartk.Model) -> None:
    lines = ["I think that she go to school every day, but he don't like it.", RUN_ON]
    small = model.decode(lines)
    large = model.decode([line.upper() for line in lines])
    assert all(each.text.isupper() for each in large)
    assert large[0].text == small[0].text.upper()
    assert lost(RUN_ON, large[1].text) < 0.1


LONG_ALONE = "blue " * 600 + "sky."
LONG = " ".join(f"the number {i} is here and" for i in range(60))


@needs_engine
def test_a_sentence_too_long_takes_no_other_with_it(model: nartk.Model) -> None:
    line = f"She go home. {LONG} that is all. He are big."
    best = model.decode([line])[0]
    assert best.error is None
    assert best.text.startswith("She went home. ")
    assert best.text.endswith(" He is big.")
    assert lost(line, best.text) < 0.1
    assert any("tokens >" in reason for each in best.guarded for reason in each.reasons)


@needs_engine
def test_what_cannot_be_cut_stays(model: nartk.Model) -> None:
    """Of 600 words without a clause, neither cut nor lost, and with no request at all."""
    alone = LONG_ALONE
    found = model.decode([f"She go home. {alone} He are big.", alone])
    assert [each.text for each in found] == [f"She went home. {alone} He is big.", alone]
    assert found[1].tokens == ()
    assert [each.done for each in found[1].guarded] == ["kept"]
    assert model.decode([alone], truncate=True)[0] == found[1]


@needs_engine
@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("She go home.", 1),
        ("She go home. He are big.", 2),
        (f"{LONG_ALONE} She go home.", 2),
        (f"She go home. {LONG_ALONE.capitalize()} He are big.", 3),
        (LONG_ALONE, 1),
        ("", 0),
    ],
    ids=["one", "two", "long and one", "one, long, one", "long", "none"],
)
def test_sentences_are_counted_whatever_becomes_of_them(model: nartk.Model, line: str, wanted: int) -> None:
    assert model.run([line]).stats.sentences == wanted


MIXED = [
    RUN_ON,
    "Hi.",
    "She go home.",
    RUN_ON.upper(),
    "",
    f"He are big. {LONG} she go. What is your name?My name are Anna.",
    "Sincerely,",
    ":)",
    RUN_ON.replace(" and ", " , "),
]


@needs_engine
@pytest.mark.parametrize("strategy", ["iad", "ngram", "union"])
def test_it_is_greedys_output_in_any_batch(model: nartk.Model, strategy: str) -> None:
    """Each line alone is what it is among others: texts, tokens, bits of log-probabilities, what was done."""
    alone = [model.decode([line], "greedy")[0] for line in MIXED]
    assert len(alone) == len(MIXED)
    for size in (1, 3, 32):
        assert model.decode(MIXED, strategy, batch_size=size) == alone
    assert [*model.iterate(MIXED, strategy, window=2)] == alone


@needs_engine
def test_draws_do_not_depend_on_other_lines() -> None:
    model = nartk.load("gec-en", threads=1)
    together = model.decode([*MIXED[:3], RUN_ON], "sample", batch_size=2, seed=3, temperature=1.5)
    rest = model.decode(["", "", "", RUN_ON], "sample", seed=3, temperature=1.5)
    assert together[3] == rest[3]
    assert together[3].guarded != ()


@needs_engine
def test_no_guard_is_the_models_own_output() -> None:
    free = nartk.load("gec-en", threads=1, guard=False)
    line = "eBay are good."  # of which the guard keeps no edit
    (best,) = free.decode([line])
    assert best.guarded == ()
    assert best.text == free.tokenization.paragraph(line).join([free.checkpoint.output.decode(best.tokens)])
    assert best.text != line == replace(free, guard=True).decode([line])[0].text
    strategy = free.strategy("greedy", {})
    assert "|guard:0" in free.signature(strategy)
    assert "|guard:1" in replace(free, guard=True).signature(strategy)


@needs_engine
def test_less_is_edited_the_more_confidence_is_asked_for() -> None:
    line = "She go to school yesterday, he have two dog and they is happy with it."
    distances = []
    for least in (0.0, 0.5, 0.9, 1.0):
        model = nartk.load("gec-en", threads=1, min_edit_confidence=least)
        (best,) = model.decode([line])
        distances.append((words(best.text) - words(line)).total())
        assert (f"|min_edit_confidence:{least:g}" in model.signature(model.strategy("greedy", {}))) == (
            least > 0
        )
    assert distances[0] > distances[-1] == 0
    assert distances == sorted(distances, reverse=True)


SUBJECTS = ("She", "They", "My friend", "The children of the town")
REST = (
    "go to school every day .",
    "likes old house very much .",
    "is in the park with two dog .",
    "want to read book about the sea .",
    "have been there since three year .",
    "do not knows where the station is .",
)
PLAIN = [f"{subject} {rest}" for subject in SUBJECTS for rest in REST]


@needs_engine
def test_an_edit_is_kept_by_the_probability_of_the_text_with_it_and_without(model: nartk.Model) -> None:
    """By the scores of two texts, of lines with one edit."""
    model = replace(model, pretokenized=True)
    kept = Counter[bool]()
    for least in (0.8, 0.9, 0.97):
        free, sure = (replace(model, min_edit_confidence=each).decode(PLAIN) for each in (0.0, least))
        for line, before, after in zip(PLAIN, free, sure, strict=True):
            changed = [*filter(None, map(str.__ne__, line.split(), before.text.split()))]
            if before.guarded or len(line.split()) != len(before.text.split()) or len(changed) != 1:
                continue
            (found,) = model.score([line], [[before.text, line]])
            with_it, without = found.score, found.alternatives[0].score
            assert with_it is not None
            assert without is not None
            is_probable = 1 / (1 + math.exp(without - with_it)) >= least
            assert after.text == (before.text if is_probable else line)
            kept[is_probable] += 1
    assert min(kept[True], kept[False]) >= 5, kept


@needs_engine
def test_misspelt_words_are_spelled_as_the_model_finds_most_probable(model: nartk.Model) -> None:
    """By the scores of each text behind the sentence as it stands, and what is decoded of the best one."""
    model = replace(model, pretokenized=True)
    lines = [f"{before} {wrong} {after} ." for wrong in MISSPELT for before, after in AROUND]
    guard = model.guarding
    assert guard is not None
    changed = 0
    found = model.decode(lines, batch_size=5)
    for line, output in zip(lines, found, strict=True):
        (clause,) = guard.clauses(line, line)
        i = AROUND[lines.index(line) % len(AROUND)][0].count(" ") + 1
        if i in clause.offers:
            texts = [replace(clause, offers={}).reading({i: each.text}).text for each in clause.offers[i]]
            (scored,) = model.score([line], [texts])
            totals = [
                each.score + 0.3 * hypothesis.score
                for each, hypothesis in zip(clause.offers[i], (scored, *scored.alternatives), strict=True)
            ]
            best = totals.index(max(totals))
            changed += best > 0
            spelled = texts[best]
        else:
            spelled = clause.text
        free = replace(model, guard=False).decode([spelled])[0].text
        if free == spelled:  # nothing else to judge
            assert output.text == spelled
    assert changed >= 3


@needs_engine
def test_words_are_spelled_alike_in_any_batch_and_strategy(model: nartk.Model) -> None:
    lines = [f"{before} {wrong} {after}." for wrong in MISSPELT for before, after in AROUND]
    wanted = [each.text for each in model.decode(lines, batch_size=1)]
    for strategy, options in (("greedy", {}), ("iad", {}), ("beam", {"beam_size": 1})):
        assert [each.text for each in model.decode(lines, strategy, batch_size=7, **options)] == wanted
    with Session(model, batch_size=3) as session:
        assert [ticket.result().text for ticket in [*map(session.submit, lines)]] == wanted


@needs_engine
def test_a_line_whose_words_are_spelled_may_be_given_up(model: nartk.Model) -> None:
    """Before they are there is no output."""
    line = "She seak to many pople in the hosue that is oled."
    strategy = model.strategy("greedy", {})
    run = LineRun(model, strategy, Batching(4))
    first, second = line_requests(model, [line, line], strategy)
    run.admit(first)
    assert run.requests == 1
    assert run.so_far(first).tokens == ()
    run.drop(first)
    assert (len(run), run.requests) == (0, 0)
    run.admit(second)
    outcomes: list[tuple[LineRequest, Any]] = []
    while len(run):
        outcomes += run.step()
    ((_, result),) = outcomes
    assert result.hypotheses[0].text == model.decode([line])[0].text
    run.close()


@needs_engine
def test_edits_are_weighed_alike_in_any_batch_and_strategy(model: nartk.Model) -> None:
    sure = replace(model, min_edit_confidence=0.9)
    lines = [*PLAIN, RUN_ON, "", *MIXED]
    wanted = [(each.text, each.guarded) for each in sure.decode(lines, batch_size=1)]
    assert sum(bool(guarded) for _, guarded in wanted) > 3
    for strategy, options in (("greedy", {}), ("iad", {}), ("beam", {"beam_size": 1})):
        found = sure.decode(lines, strategy, batch_size=7, **options)
        assert [(each.text, each.guarded) for each in found] == wanted, strategy
    with Session(sure, batch_size=3) as session:
        tickets = [session.submit(line) for line in lines]
        assert [ticket.result().text for ticket in tickets] == [text for text, _ in wanted]


@needs_engine
def test_what_is_weighed_is_encoded_once(model: nartk.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each text that is read once, whatever the batch; afterwards no encoding is held."""
    sure = replace(model, min_edit_confidence=0.9)
    from nartk.engine import _native

    encoded: list[int] = []
    encode = _native.Engine.encode

    def counted(engine: Any, tokens: list[int], sizes: list[int]) -> Any:
        encoded.extend(sizes)
        return encode(engine, tokens, sizes)

    monkeypatch.setattr(_native.Engine, "encode", counted)
    for size in (1, 4):
        encoded.clear()
        found = sure.decode(PLAIN, batch_size=size)
        assert any(each.guarded for each in found)
        assert len(encoded) == len(PLAIN)
    assert sure.passes.memories_in_use == len(sure.passes._texts.kept) == 0


@needs_engine
def test_the_last_encodings_are_found_again(model: nartk.Model) -> None:
    passes = replace(model).passes
    texts = [model.encode(line) for line in PLAIN[:4]]
    fresh = passes.encode(texts)
    bits = [each.tobytes() for each in passes.encodings(fresh)]
    passes.free(fresh)
    passes.keep_encoded(2)
    held = passes.encode([*texts, texts[3]])
    assert passes.memories_in_use == 5
    passes.free(held)
    assert passes.memories_in_use == 0
    assert [*passes._texts.kept] == [tuple(text) for text in texts[2:]]
    again = passes.encode(texts[::-1])
    assert not passes._texts.kept
    assert [each.tobytes() for each in passes.encodings(again)] == bits[::-1]
    with pytest.raises(PassError):
        passes.encode([[*texts[0], len(model.checkpoint.target_vocab)]])
    passes.free(again)
    with pytest.raises(PassError):
        passes.encode([texts[3], [len(model.checkpoint.target_vocab)]])
    passes.keep_encoded(0)
    assert passes.memories_in_use == len(passes._texts.kept) == 0
    assert passes._encoder.memories_in_use == 0


@needs_engine
def test_a_line_whose_edits_are_weighed_may_be_given_up(model: nartk.Model) -> None:
    """Until it has its scores its output so far is what the model wrote."""
    line = "She go to school every day with two dog."
    sure = replace(model, min_edit_confidence=0.9)
    strategy = sure.strategy("greedy", {})
    run = LineRun(sure, strategy, Batching(4))
    first, second = line_requests(sure, [line, line], strategy)
    run.admit(first)
    whole = replace(model, guard=False).decode([line])[0].tokens
    while run.so_far(first).tokens != whole:
        assert not run.step()
    run.drop(first)
    assert (len(run), run.requests, run.so_far(first).tokens) == (0, 0, ())
    run.admit(second)
    outcomes: list[tuple[LineRequest, Any]] = []
    while len(run):
        outcomes += run.step()
    ((asked, result),) = outcomes
    assert asked is second
    assert result.hypotheses[0].text == sure.decode([line])[0].text
    run.close()


@needs_engine
@pytest.mark.parametrize(
    "settings", [{"min_edit_confidence": 1.5}, {"min_edit_confidence": 0.5, "guard": False}]
)
def test_confidence_out_of_bounds_or_without_a_guard_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="min_edit_confidence"):
        nartk.load("gec-en", **settings)


@needs_engine
def test_words_are_read_once_whatever_confidence_is_asked_for(model: nartk.Model) -> None:
    sure = replace(model, min_edit_confidence=0.5)
    assert sure.guarding is sure.guarding is not None


@needs_engine
@pytest.mark.parametrize("options", [{"no_source_ngram": 3}, {"min_len": 40}], ids=str)
def test_no_source_takes_the_output_that_an_option_forbids(
    model: nartk.Model, options: dict[str, Any]
) -> None:
    line = "He go to school every day with his old friends ."
    (best,) = model.decode([line], "greedy", **options)
    assert best.guarded == ()
    assert best.tokens == nartk.load("gec-en", guard=False, threads=1).decode([line], **options)[0].tokens


@needs_engine
def test_groups_of_hypotheses_are_sound_as_others_are(model: nartk.Model) -> None:
    """What their words pay speaks against none."""
    options: dict[str, Any] = {"beam_size": 4, "nbest": 4, "beam_groups": 4, "diversity_penalty": 2.0}
    best = model.decode("He goes to school every day .", "beam", **options)
    assert len(best.alternatives) >= 2


@needs_engine
def test_each_hypothesis_of_an_n_best_list_is_judged(model: nartk.Model) -> None:
    run = model.run(["Hi.", "She go home."], "beam", {"beam_size": 5, "nbest": 5})
    for line, hypotheses in zip(["Hi.", "She go home."], run.hypotheses, strict=True):
        assert 1 <= len(hypotheses) <= 5
        assert all(lost(line, each.text) <= 0.5 for each in hypotheses)


@needs_engine
def test_tokenised_text_is_guarded_too() -> None:
    model = nartk.load("gec-en", threads=1, pretokenized=True)
    found = model.decode(["What is your name?My name is Anna .", "Hi .", "The  the the .", "She go home ."])
    assert [each.text for each in found] == [
        "What is your name ? My name is Anna .",
        "Hi .",
        "The  the the .",
        "She went home .",
    ]


# Commands


@needs_engine
def test_commands_say_what_was_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in.txt").write_text(f"{TWICE}\nThe the the.\nSincerely,\nShe go home.\n")
    files = {name: tmp_path / name for name in ("stats.json", "trace.jsonl")}
    flags = ["--stats", str(files["stats.json"]), "--trace", str(files["trace.jsonl"]), "--threads", "1"]
    assert decode(["gec-en", str(tmp_path / "in.txt"), "--output-format", "jsonl", *flags]) == 0
    captured = capsys.readouterr()
    records = [json.loads(line)["hypotheses"][0] for line in captured.out.splitlines()]
    traces = [json.loads(line) for line in files["trace.jsonl"].read_text().splitlines()]
    done = [[each["done"] for each in record.get("guard", [])] for record in records]
    assert set(done[0]) >= {"split"}
    assert done[1:] == [["kept"], ["undone"], []]
    assert [trace.get("guard", []) for trace in traces] == [record.get("guard", []) for record in records]
    counts = Counter(each for line in done for each in line)
    assert json.loads(files["stats.json"].read_text())["guard"] == {
        each: counts[each] for each in ("split", "kept", "undone")
    }
    assert f"guard: {counts['split']} split, " in captured.err
    assert decode(["gec-en", str(tmp_path / "in.txt"), "--no-guard", "--quiet", *flags]) == 0
    assert json.loads(files["stats.json"].read_text())["guard"] is None
    given = ["--score", str(tmp_path / "in.txt"), "--stats", str(files["stats.json"]), "--threads", "1"]
    assert decode(["gec-en", str(tmp_path / "in.txt"), "--quiet", *given]) == 0
    scored = json.loads(files["stats.json"].read_text())
    assert scored["guard"] is None
    assert "|guard:0" in scored["signature"]
    assert decode([str(tmp_path / "in.txt"), "--no-guard", "--min-edit-confidence", "0.5"]) == 2
    assert "--min-edit-confidence 0.5, but the guard is off" in capsys.readouterr().err


@needs_engine
def test_verify_compares_without_the_guard_and_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.txt").write_text(f"{TWICE}\nThe the the.\nShe go home.\n")
    assert verify(["gec-en", str(tmp_path / "in.txt"), "--quiet", "--threads", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("identical to greedy: 3 sentences")
    assert re.match(
        r"with the guard identical to greedy: 3 sentences, \d+ split, 1 kept, \d+ undone", lines[-1]
    )


# Model folders


def test_a_guard_is_read_from_the_models_folder(tmp_path: Path) -> None:
    """The model makes one edit, which is undone where nothing is probable enough."""
    folder = with_guard(tiny.corrector(tmp_path / "model"))
    assert nartk.load(folder).decode(["he go home"])[0].text == "he goes home"
    with_guard(folder, edit=1.0)
    (best,) = nartk.load(folder).decode(["he go home"])
    assert best.text == "he go home"
    assert [(each.done, each.text) for each in best.guarded] == [("undone", "go")]
    with_guard(folder, lowest=0.0)
    (best,) = nartk.load(folder).decode(["he go home"])
    assert [(each.done, each.text) for each in best.guarded] == [("kept", "he go home")]
    assert nartk.load(folder, guard=False).decode(["he go home"])[0].text == "he goes home"


def test_edits_of_a_model_that_gives_a_text_no_probability_cannot_be_weighed(tmp_path: Path) -> None:
    write_network(tmp_path / "ctc", "ctc", WORDS, 1)
    folder = with_guard(tmp_path / "ctc")
    guard = nartk.load(folder, min_edit_confidence=0.0).guarding
    assert guard is not None
    assert not guard.can_score
    with pytest.raises(UsageError, match=r"0\.5, but a 'ctc' gives a text no probability"):
        nartk.load(folder, min_edit_confidence=0.5)
    with_guard(folder, edit=0.25)
    with pytest.raises(UsageError, match=r"0\.25, but a 'ctc' gives a text no probability"):
        nartk.load(folder)


def test_a_model_without_a_guard_fails_a_line_as_before(tmp_path: Path) -> None:
    folder = tiny.corrector(tmp_path / "model")
    with pytest.raises(UsageError, match=r"min_edit_confidence=0\.5, but the model has no guard\. Fix"):
        nartk.load(folder, min_edit_confidence=0.5)
    assert isinstance(nartk.load(folder).run(["he " * 500]).errors[0], InputTooLongError)
    with_guard(folder)
    assert nartk.load(folder).run(["he " * 500]).hypotheses[0][0].text == "he " * 500


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mean": "low"}, "'mean' of 'guard' is 'low', no number"),
        ({"list": "none.txt"}, "the file 'none.txt' is missing"),
        ({"list": "../words.txt"}, "not the name of a file"),
        ({"more": 1}, "'guard' has not the keys mean, lowest"),
    ],
)
def test_a_guard_that_cannot_be_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    folder = with_guard(tiny.random_model(tmp_path / "model"), **changes)
    with pytest.raises(CheckpointError, match=re.escape(message)):
        nartk.load(folder)


@needs_engine
def test_an_int8_folder_keeps_the_guard(tmp_path: Path) -> None:
    folder = with_guard(tiny.corrector(tmp_path / "model"), edit=1.0)
    assert convert([str(folder), "--quantize", "int8", "--output", str(tmp_path / "int8")]) == 0
    assert nartk.load(tmp_path / "int8", check=True).decode(["he go home"])[0].text == "he go home"


# What speaks against an output, by hand


@pytest.fixture
def guard(tmp_path: Path) -> Guard:
    (tmp_path / "words.txt").write_text(SOME.replace(" ", "\n"))
    return Guard(OPEN, tmp_path / "words.txt")


def mended(guard: Guard, source: str, output: str, *gains: float) -> str:
    return " ".join(guard.mend(source.split(), output.split(), gains)[0])


@pytest.mark.parametrize(
    ("source", "output", "wanted"),
    [
        ("he go home", "he goes home", "he goes home"),
        ("he go home", "he goess home", "he go home"),
        ("Gottlieb go home", "Gotlieb goes home", "Gottlieb goes home"),
        ("Gottlieb go home", "GOTTLIEB goes home", "GOTTLIEB goes home"),
        ("a go-home school", "a home-school", "a go-home school"),
        ("what ? !", "what ?", "what ? !"),
        ("? he go home", "he go home", "he go home"),
        ("? ! he go home", "he go home", "? ! he go home"),
        ("my home ,", "my home .", "my home ,"),
        ("my home !", "my school .", "my school !"),
        ("my home , park", "my home . park", "my home . park"),
        ("e.g.this home", "E.g.th is home", "e.g.this home"),
        ("4:name is", "4 : name is", "4 : name is"),
        ("name ⁇ is", "name is", "name is"),
        ("name is", "name ⁇ is", "name is"),
        ("name ⁇ go home", "name ⁇ goes home", "name ⁇ goes home"),
        ("name ⁇ go home", "name ⁇ goes ⁇ home", "name ⁇ go home"),
    ],
)
def test_edits_that_are_undone(guard: Guard, source: str, output: str, wanted: str) -> None:
    assert mended(guard, source, output) == wanted


@pytest.mark.parametrize(
    ("source", "output", "wanted"),
    [
        ("he go the home", "he goes home", "he goes home"),
        ("he go home school", "he goes home", "he goes home school"),  # no function word
        ("he go home to school", "he goes to school", "he go home to school"),
        ("he go home home", "he goes home", "he goes home"),  # twice
        ("park home run", "park run home", "park run home"),  # it moved
        ("go to every where", "go everywhere", "go everywhere"),
        ("go to hom", "go to him", "go to him"),
        ("go park London had", "going had", "go park London had"),
        ("park is what", "school is what", "park is what"),  # another word
        ("home is what", "homes is what", "homes is what"),
        ("he went home", "he gone home", "he gone home"),
        ("he seen it", "he saw it", "he saw it"),
        ("I say it", "I tell it", "I tell it"),  # confused
    ],
)
def test_words_that_may_not_be_dropped(guard: Guard, source: str, output: str, wanted: str) -> None:
    tokens, undone = guard.with_words(source.split(), output.split())
    assert " ".join(tokens) == wanted
    assert len(undone) == (wanted != output)


def test_what_a_text_gains_by_an_edit(guard: Guard) -> None:
    """One of more than 3 to 1 has a probability above 0.75."""
    guard = replace(guard, thresholds=replace(OPEN, edit=0.75))
    likely, rare = math.log(3.01), math.log(2.99)
    assert mended(guard, "he go home", "he goes home", likely) == "he goes home"
    assert mended(guard, "he go home", "he goes home", rare) == "he go home"
    assert mended(guard, "he go the home", "he go home", rare) == "he go the home"
    assert mended(guard, "he go home to", "he goes home", likely, rare) == "he goes home to"
    assert mended(guard, "he go school", "he goes to school", -800.0) == "he go school"
    source, output = "home he go to the school", "he goes to the school home"
    assert mended(guard, source, output, rare, likely) == "home he goes to the school"
    certain = replace(guard, thresholds=replace(OPEN, edit=1.0))
    assert mended(certain, "he go home", "he goes home", 800.0) == "he go home"


def test_variants_lack_an_edit_each(guard: Guard) -> None:
    def piece(text: str) -> Clause:
        (found,) = clauses(text.split(), text.split(), KNOWN)
        return found

    clause = piece("he go the home")
    assert guard.variants(clause, "he goes home") == ()
    guard = replace(guard, thresholds=replace(OPEN, edit=0.5))
    assert guard.variants(clause, "he go the home") == ()
    assert guard.variants(clause, "he had home") == ("he go the home",)
    assert guard.variants(clause, "He go to home") == ("he go to home", "He go the home")
    capitals = piece("HE GO THE HOME")
    assert guard.variants(capitals, "He goes the home") == ("He go the home",)
    # A word that moves is one edit.
    moved = piece("home he go to the school")
    assert guard.variants(moved, "he goes to the school home") == (
        "home he goes to the school",
        "he go to the school home",
    )
    first, _ = piece("he had the park , and she had the school").halves()
    assert guard.variants(first, "he had park .") == ("he had the park .",)


def test_evidence_by_hand(guard: Guard) -> None:
    source, output = map(str.split, ("he go to the school .", "he go to the go to the park , Skool ."))
    found = guard.evidence(source, output, [-1.0, -3.0, 0.0, 0.0])
    assert found["mean"] == -1.0
    assert found["lowest"] == -3.0
    assert found["shortest"] == pytest.approx(10 / 5)  # nine words, and one more
    assert found["longest"] == pytest.approx(8 / 5)
    assert found["repeated"] == 1  # go to the
    assert found["words"] == pytest.approx(1 - 1 / 5)  # school; park and Skool begin otherwise
    assert found["strange"] == pytest.approx(1 / 9)


@pytest.mark.parametrize(
    ("count", "source", "output", "wanted"),
    [
        (repeated, "a b c a b c", "a b c a b c", 0),
        (repeated, "a b c", "a b c a b c d", 1),
        (repeated, "a a a a", "a a a a a", 1),
        (words_lost, "he do nt likes it", "he does nt like it", 0),
        (words_lost, "hi", "he", 1),
        (words_lost, "too expensive", "to expensive", 1),
        (words_lost, "the the cat", "the dog", 2),
        (letters_kept, "Hi .", "He .", 1 / 2),
        (letters_kept, "she go home", "she went home", 1),  # one may be another
        (letters_kept, "she go home now", "he went home then", 1 - 3 / 12),
    ],
)
def test_counts_by_hand(count: Any, source: str, output: str, wanted: float) -> None:
    assert count(source.split(), output.split()) == pytest.approx(wanted)


def test_what_the_source_already_had_is_not_strange(guard: Guard) -> None:
    """A character that the model cannot write is, where it is new, but not where the source has it."""
    assert guard.evidence(["a", "⁇", "na⁇ve"], ["the", "⁇", "na⁇ve"], None)["strange"] == 0
    assert guard.evidence(["a", "⁇"], ["the", "⁇", "na⁇ve"], None)["strange"] == pytest.approx(1 / 2)


def test_an_output_that_is_its_source_is_sound(guard: Guard) -> None:
    strict = replace(guard, thresholds=Thresholds(0, 0, 9, -1, -1, 2, 2, -1, 1))
    assert strict.reasons(["he"], ["he"], [-9.0]) == []
    assert len(strict.reasons(["he"], ["she"], [-9.0])) == len(BOUNDS)


# Pieces


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("what is your name?my name is", ["what is your name ?", "my name is"]),
        ("I run!He had", ["I run !", "He had"]),
        ("I run.He had", ["I run .", "He had"]),
        ("I run!!He had", ["I run !!", "He had"]),
        ("I Run.School had", ["I Run.School had"]),
        ("Yahoo!Answers is", ["Yahoo!Answers is"]),
        ("home.txt e.g.the U.S.A what?! a.home home?id=3 a?b:c", None),
        ("http://a.home/go?the=he me@home.the", None),
    ],
)
def test_marks_between_words_end_sentences(text: str, wanted: list[str] | None) -> None:
    tokens = text.split()
    found = [" ".join(each.read) for each in clauses(tokens, tokens, KNOWN)]
    assert found == ([text] if wanted is None else wanted)
    assert [each.read for each in clauses(tokens, tokens, KNOWN, whole=True)] == [tuple(tokens)]


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("HE GO TO LONDON , I HAD", "He go to London , I had"),
        ("I", "I"),
        ("THE ÉCOLE IS", "The école is"),
        ("HE GO to LONDON", "HE GO to LONDON"),
        ("A4 B5 1", "A4 b5 1"),
    ],
)
def test_capitals_are_read_without(text: str, read: str) -> None:
    (clause,) = clauses(text.split(), text.split(), KNOWN)
    assert clause.text == read
    assert clause.restore(read.split()) == text.split()


def test_halves_part_at_clauses() -> None:
    tokens = tokenize("he had the park, and she had the school")
    (clause,) = clauses(tokens, tokens, KNOWN)
    first, second = clause.halves()
    assert (first.text, second.text) == ("he had the park .", "And she had the school")
    assert first.restore(["He", "had", "."]) == ["He", "had", ","]
    assert second.restore(["And", "she"]) == ["and", "she"]
    assert Clause(("he", "had", "it"), ("he", "had", "it"), KNOWN).halves() == ()


ANY = st.lists(
    st.sampled_from([*WORDS, "and", "but", ",", ".", ";", "The", "HE", "because", "(", "5"]),
    min_size=1,
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(ANY, st.booleans())
def test_pieces_hold_the_sentence_and_a_copy_restores_it(tokens: list[str], upper: bool) -> None:
    """However often a sentence is cut, nothing is lost, and what a model copies comes back as it was."""
    tokens = [token.upper() for token in tokens] if upper else tokens
    parts = clauses(tokens, tokens, KNOWN)
    for _ in range(4):
        assert [token for part in parts for token in part.read] == tokens
        copied = [word for part in parts for word in part.restore(part.text.split())]
        assert copied == tokens
        parts = [half for part in parts for half in part.halves() or (part,)]
