"""The page of a trace: inert whatever the text, self-contained, and drawn in a browser where there is one."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import re
import shutil
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.browser import Browser, started
from support.traced_graph import GRAPH

from nartk.tracing import ORIGINS, Traced, page, speech

NASTY = (
    "<script>window.hacked = 1</script>",
    "</script><img src=x onerror='window.hacked = 1'>",
    "<!-- <script> <![CDATA[ ]]> -->",
    "a\u2028b\u2029c\x85d\x00e\x1ff",
    "&lt;b&gt; &amp; &#60;i&#62;",
    "{{script}} {{data}} \\u003c \\",
    "'\"`${hacked}",
    "half \ud83d a pair",
    "שלום \u202e olleh",
    "constructor __proto__ [object Object]",
)


def sentence(line: int, text: str = "she goes home .", **changes: Any) -> Traced:
    """Of seven tokens: a draft of three with the verifier's own, the verifier's, another draft, eos."""
    words = ("▁she", "▁go", "es", "▁home", "▁now", "▁.", "</s>")
    values: dict[str, Any] = {
        "line": line, "id": line, "signature": "strategy:iad|model:abc", "source_text": text,
        "output_text": text, "source": ("▁she", "</s>"), "output": words,
        "origin": ("draft", "draft", "draft", "verifier", "verifier", "draft", "verifier"),
        "passes_at": (1, 1, 1, 1, 2, 3, 3), "margin": (5.0, 4.0, 3.0, 0.5, 0.25, 2.0, None),
        "lprob": (-0.125, -0.25, -0.5, -1.0, -0.6931, -0.75, -0.1), "score": -3.0, "passes": 3, "drafted": 9,
        "accepted": 4, "seconds": 0.125, **changes,
    }  # fmt: skip
    return Traced(**values)


def nasty_trace() -> list[Traced]:
    """Each text as source, output, piece, id, signature and message, and as words of a graph."""
    found = []
    for line, text in enumerate(NASTY, 1):
        graph = {**GRAPH, "emitted": [text, text], "words": [[[text, -1.0]]] * 4}
        found.append(
            sentence(
                line, text, output=(text,) * 7, id=text, signature=text, nbest=((text, None),), graph=graph
            )
        )
        error = dict.fromkeys(("code", "name", "where", "message", "fix"), text)
        found.append(Traced(line, {text: text}, text, error=error))
    return found


# Without a browser


class Elements(HTMLParser):
    """The elements of a page, and the text inside its scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.inside: list[tuple[str, str]] = []  # of each script and style, its tag and text
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag in ("script", "style"):
            self.inside.append((tag, ""))

    def handle_data(self, data: str) -> None:
        if self.inside and self.cdata_elem is not None:
            tag, before = self.inside[-1]
            self.inside[-1] = (tag, before + data)


def data_of(text: str) -> Any:
    """The trace that a page holds, or None where its text has broken out of it."""
    found = Elements(text)
    empty = Elements(page.page([], name="empty"))
    if found.tags != empty.tags:
        return None
    try:
        return json.loads(found.inside[1][1])
    except ValueError:
        return None


@pytest.mark.parametrize("name", [*NASTY, "trace.jsonl"])
def test_any_text_is_data_and_no_markup(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = nasty_trace()
    data = data_of(page.page(trace, name=name, damaged=2))
    assert (data["name"], data["damaged"], data["failed"]) == (name, 2, len(NASTY))
    assert data["signatures"] == [*NASTY]
    for text, line, failed in zip(NASTY, data["lines"][::2], data["lines"][1::2], strict=True):
        assert line["source"] == line["text"] == line["id"] == text
        assert line["output"] == [text] * 7
        assert line["graph"]["emitted"] == [text] * 2
        assert line["nbest"] == [[text, None]]
        assert failed["error"]["message"] == text
        assert json.loads(failed["id"]) == {text: text}
    # Known bad: what JSON alone makes of it.
    monkeypatch.setattr(page, "embed", json.dumps)
    assert data_of(page.page(trace, name=name)) is None


def test_the_page_is_ascii_where_the_trace_stands() -> None:
    """U+2028 ends a line of older scripts, and half a pair is no UTF-8."""
    written = page.page(nasty_trace(), name=NASTY[3])
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', written, re.DOTALL)
    assert data.isascii()
    assert not set("<>&\n") & set(data)
    written.encode()


def test_figures_by_hand() -> None:
    trace = [sentence(1), sentence(5, output=(), origin=(), passes_at=(), margin=(), lprob=None, passes=0)]
    trace.append(sentence(6, signature="other", output=("she", "</s>"), origin=("model",) * 2,
                          passes_at=(1, 1), margin=(None, None), lprob=None, passes=1, drafted=0, accepted=0,
                          seconds=0.5))  # fmt: skip
    data = data_of(page.page(trace, name="t"))
    counts = {key: data[key] for key in ("sentences", "tokens", "passes", "drafted", "accepted", "failed")}
    assert counts == {"sentences": 2, "tokens": 9, "passes": 4, "drafted": 9, "accepted": 4, "failed": 0}
    assert data["origins"] == [["draft", 4], ["verifier", 3], ["rollback", 0], ["prefix", 0], ["model", 2]]
    assert data["bars"] == [[1, 1, 1], [2, 2, 2], [3, 3, 0], [4, 4, 1]]  # passes of 4, 1, 2 and 2 tokens
    assert data["tokensPerSecond"] == 14.4
    assert data["latency"] == {"p50": 125.0, "p90": 500.0, "p99": 500.0}
    assert data["marked"] == [True, False]
    first = data["lines"][0]
    assert (first["origin"], first["pass"], first["ms"]) == ("0001101", [1, 1, 1, 1, 2, 3, 3], 125.0)
    assert first["margin"] == [5.0, 4.0, 3.0, 0.5, 0.25, 2.0, None]


def test_a_diff_is_of_words() -> None:
    found = page.diff("She go to  school becuase it is .", "Today she went to school because it is fun .")
    assert found == [
        ("del", "She go"), ("ins", "Today she went"), ("", "to  school"), ("del", "becuase"),
        ("ins", "because"), ("", "it is"), ("ins", "fun"), ("", "."),
    ]  # fmt: skip


@given(st.text(alphabet="ab .", max_size=30), st.text(alphabet="ab .", max_size=30))
def test_a_diff_holds_both_sides(source: str, output: str) -> None:
    """Whoever leaves out what was put in reads the source, and the other way round."""
    found = page.diff(source, output)
    for mark, side in (("ins", source), ("del", output)):
        assert [word for kind, text in found if kind != mark for word in text.split()] == side.split()
    marks = [mark for mark, _ in found]
    assert all(left != right for left, right in pairwise(marks))
    assert all(text == text.strip() != "" for _, text in found)


def test_outputs_that_copy_their_source_are_shown_as_changes() -> None:
    def translation(line: int, source: str, output: str) -> Traced:
        return sentence(line, source, output_text=output, signature="translation")

    trace = [
        sentence(1, "she go home .", output_text="she goes home ."),
        sentence(2, "she goes home ."),
        sentence(3, "no word", output_text="all new"),
        translation(4, "Berlin , 1989 .", "Berlin , 1989 !"),
        translation(5, "das ist ein sehr langer Satz .", "this is a very long sentence indeed"),
    ]
    lines = data_of(page.page(trace, name="t"))["lines"]
    assert [line.get("diff") for line in lines] == [
        [["", "she"], ["del", "go"], ["ins", "goes"], ["", "home ."]],
        None,
        [["del", "no word"], ["ins", "all new"]],
        None,
        None,
    ]


def test_the_page_asks_for_nothing_and_runs_its_own_script_alone() -> None:
    written = page.page([sentence(1)], name="t")
    found = Elements(written)
    assert [tag for tag, _ in found.inside] == ["style", "script", "script"]
    assert [each for each in found.attributes if each[1] in ("src", "href", "srcset", "action")] == [
        ("link", "href", "data:,")
    ]
    assert not any(name.startswith("on") or name == "style" for _, name, _ in found.attributes)
    (policy,) = (
        value for _, name, value in found.attributes if name == "content" and "default-src" in str(value)
    )
    style, _, script = (text for _, text in found.inside)
    for text in (style, script):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in str(policy)
    assert "default-src 'none'" in str(policy)
    assert "unsafe" not in str(policy)
    assert re.findall(r"url\(|@import|https?:[^\"]*", style + script) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\(", script)


def luminance(color: str) -> float:
    """Relative, as WCAG 2.1 defines it."""
    digits = color if len(color) == 6 else "".join(2 * digit for digit in color)
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    red, green, blue = (x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    low, high = sorted(map(luminance, (first, second)))
    return (high + 0.05) / (low + 0.05)


def test_colours_can_be_read_in_the_light_and_in_the_dark() -> None:
    assert contrast("ffffff", "767676") == pytest.approx(4.54, abs=0.01)  # WCAG's own example of enough
    style = (files("nartk.tracing") / "draw.css").read_text(encoding="utf-8")
    schemes = [
        dict(re.findall(r"--(\w+): #(\w+);", block)) for block in re.findall(r":root \{(.*?)\}", style, re.S)
    ]
    assert len(schemes) == 2
    for scheme in schemes:
        for ground in (scheme["paper"], scheme["panel"]):
            assert contrast(scheme["ink"], ground) > 7
            assert contrast(scheme["soft"], ground) > 4.5
        assert contrast(scheme["verifier"], scheme["paper"]) > 4.5  # of errors
        assert all(contrast(scheme[origin], scheme["paper"]) > 3 for origin in ORIGINS)
        assert all(contrast(scheme[each], scheme["paper"]) > 4.5 for each in ("removed", "added"))
    # Whoever sees no colours has the underlines.
    lines = [re.search(rf"^\.{name} \{{(?:.*text-decoration-style: (\w+))?", style, re.M) for name in ORIGINS]
    assert [each and each[1] for each in lines] == [None, "double", "wavy", "dotted", "dashed"]
    assert re.findall(r"^(del|ins) .*text-decoration: ([a-z-]+)", style, re.M) == [
        ("del", "line-through"), ("ins", "underline")
    ]  # fmt: skip


def test_the_script_is_sound() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node on this machine")
    folder = files("nartk.tracing")
    script = "".join((folder / name).read_text(encoding="utf-8") for name in ("draw.js", "page.js"))
    subprocess.run([node, "--check", "-"], input=script.encode(), check=True)


# In a browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    yield from started(tmp_path_factory.mktemp("browser"))


def save(path: Path, trace: list[Traced], **options: Any) -> Path:
    path.write_text(page.page(trace, **{"name": "trace.jsonl", **options}), encoding="utf-8")
    return path


def many(count: int) -> list[Traced]:
    rng = random.Random(1)
    found = []
    for line in range(1, count + 1):
        passes_at = sorted(rng.randint(1, 3) for _ in range(7))
        passes_at[-1] = passes = rng.randint(3, 12)
        margin = tuple(round(rng.random(), 6) for _ in range(7))
        found.append(
            sentence(line, f"number {line} .", passes_at=tuple(passes_at), passes=passes, margin=margin)
        )
    return found


LINES = "[...document.querySelectorAll('article b')].map(e => Number(e.textContent.slice(1)))"
TOKENS = "[...document.querySelectorAll('article .token')]"


def test_a_sentence_is_drawn(browser: Browser, tmp_path: Path) -> None:
    browser.open(save(tmp_path / "t.html", [sentence(3)], damaged=1))
    assert browser.get("document.title") == "trace.jsonl – nartk trace"
    assert (
        browser.get("document.getElementById('warning').textContent")
        == "1 damaged line of the trace left out."
    )
    assert browser.get("document.querySelector('.output').textContent") == "she goes home now . </s>"
    assert browser.get("document.querySelectorAll('.turn').length") == 2
    assert browser.get(f"{TOKENS}.map(e => e.className.split(' ')[1])") == [*sentence(3).origin]
    assert browser.get("document.querySelector('.facts').textContent") == (
        "#37 tokens · 3 passes · 2.33 tokens a pass · 4 of 9 drafted accepted · 125 ms · score -3"
    )
    figures = browser.get("Object.fromEntries([...document.querySelectorAll('#summary div')].map(e => "
                          "[e.children[0].textContent, e.children[1].textContent]))")  # fmt: skip
    assert figures == {
        "sentences": "1", "tokens": "7", "passes": "3", "tokens a pass": "2.33", "accepted a pass": "1.33",
        "drafts accepted": "44.4 %", "latency, median": "125 ms", "tokens/s of a sentence": "56",
    }  # fmt: skip
    assert browser.get("document.getElementById('histogram').getAttribute('aria-label')") == (
        "1 tokens: 1 passes; 2 tokens: 1 passes; 3 tokens: 0 passes; 4 tokens: 1 passes"
    )
    assert browser.troubles() == []


def test_a_source_is_drawn_with_what_became_of_it(browser: Browser, tmp_path: Path) -> None:
    nasty = [
        sentence(2 + i, f"what they all kept {text}", output_text="what they all kept")
        for i, text in enumerate(NASTY[:3])
    ]
    trace = [sentence(1, "she go home .", output_text="now she goes home ."), *nasty]
    for view in ("tokens", "passes"):
        browser.open(save(tmp_path / "t.html", trace), f"#view={view}")
        sources = "[...document.querySelectorAll('.source')]"
        assert browser.get(f"{sources}[0].innerHTML") == (
            "<ins>now</ins> she <del>go</del> <ins>goes</ins> home ."
        )
        assert browser.get(f"{sources}.slice(1).map(e => e.textContent)") == [
            f"what they all kept {text}" for text in NASTY[:3]
        ]
        assert foreign(browser) == 0
        assert browser.get("document.getElementById('changes').hidden") is False
        assert browser.troubles() == []
    browser.open(save(tmp_path / "t.html", [sentence(1)]))
    assert browser.get("document.getElementById('changes').hidden") is True
    assert browser.get("document.querySelectorAll('article del, article ins').length") == 0


def test_each_pass_is_a_row_of_what_it_settled(browser: Browser, tmp_path: Path) -> None:
    scattered = sentence(2, passes_at=(1, 3, 1, 2, 3, 1, 0))
    path = save(tmp_path / "t.html", [sentence(1), scattered])
    browser.open(path, "#view=passes")
    rows = browser.get(
        "[...document.querySelectorAll('article')].map(a => [...a.querySelectorAll('.passes li')].map(li => "
        "[li.children[0].textContent, li.children[1].textContent, li.children[3].textContent]))"
    )
    assert rows == [
        [["1", "4", "she goes home"], ["2", "1", "… goes home now"], ["3", "2", "… goes home now . </s>"]],
        [
            ["–", "1", "… home now . </s>"],
            ["1", "3", "she goes home now ."],
            ["2", "1", "she goes home"],
            ["3", "2", "she goes home now"],
        ],
    ]
    assert (
        browser.get("document.querySelectorAll('article:nth-child(2) .passes li:nth-child(2) .token').length")
        == 3
    )
    assert browser.troubles() == []


def test_a_token_tells_by_mouse_and_by_keyboard(browser: Browser, tmp_path: Path) -> None:
    browser.open(save(tmp_path / "t.html", [sentence(1), sentence(2, lprob=None)]))
    tip = "(t => t.hidden ? null : t.textContent)(document.getElementById('tip'))"
    wanted = (
        "▁now\nverifier: the verifier's own\npass 2 of 3\nmargin 0.25 nats\n"
        "log-probability -0.6931 nats (50.0 %)"
    )
    assert browser.get(tip) is None
    browser.point("[data-at='4']")
    assert browser.get(tip) == wanted
    assert browser.get(f"{TOKENS}.filter(e => e.classList.contains('same')).length") == 1
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
    assert browser.get(tip) is None

    assert browser.get(f"{TOKENS}.map(e => e.tabIndex)") == [0, *[-1] * 6, 0, *[-1] * 6]
    browser.get(f"{TOKENS}[0].focus()")
    for _ in range(4):
        browser.press("ArrowRight")
    assert browser.get(tip) == wanted
    browser.press("Home")
    assert browser.get("document.activeElement.textContent") == "she"
    browser.press("ArrowLeft")  # nothing is there
    browser.press("End")
    assert browser.get(tip).endswith("pass 3 of 3\nmargin not known\nlog-probability -0.1 nats (90.5 %)")
    browser.press("Escape")
    assert browser.get(tip) is None
    browser.get(f"{TOKENS}[8].focus()")
    assert browser.get(tip).endswith("log-probability not known")
    assert browser.troubles() == []


def foreign(browser: Browser) -> int:
    """Elements that only text in the place of markup can have made."""
    return int(
        browser.get("document.querySelectorAll('img, b b, i i, article script, header script').length")
    )


def test_nasty_text_is_shown_as_it_is(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = nasty_trace()
    for view in ("tokens", "passes"):
        path = save(tmp_path / "t.html", trace, name=NASTY[1])
        browser.open(path, f"#view={view}")
        assert foreign(browser) == 0
        shown = browser.get("[...document.querySelectorAll('.source')].map(e => e.textContent)")
        assert shown == [*NASTY]
        browser.get("document.querySelectorAll('details').forEach(e => e.open = true)")
        browser.settle()
        assert browser.get("document.querySelectorAll('svg').length") == len(NASTY)
        assert foreign(browser) == 0
        assert browser.get("typeof window.hacked") == "undefined"
        assert browser.troubles() == []
    # Known bad: a script that reads text as markup, which the policy then keeps from running.
    part = page._part
    monkeypatch.setattr(
        page,
        "_part",
        lambda name: part(name).replace("element.textContent = text", "element.innerHTML = text"),
    )
    browser.open(save(tmp_path / "bad.html", trace))
    assert foreign(browser) > 0
    assert browser.get("typeof window.hacked") == "undefined"
    assert browser.troubles() != []


def test_five_thousand_sentences(browser: Browser, tmp_path: Path) -> None:
    trace = many(5000)
    browser.open(save(tmp_path / "t.html", trace))
    assert browser.get("document.getElementById('count').textContent") == "5,000 lines"
    first = browser.get(LINES)
    assert first == [*range(1, len(first) + 1)]
    assert len(first) < 200
    for _ in range(3):
        browser.get("scrollTo(0, document.documentElement.scrollHeight)")
        browser.settle()
    assert len(browser.get(LINES)) >= len(first) + 100

    def search(text: str) -> list[int]:
        browser.get(f"(e => {{ e.value = {json.dumps(text)}; e.dispatchEvent(new Event('input')); }})"
                    "(document.getElementById('search'))")  # fmt: skip
        return list(browser.get(LINES))

    assert search("NUMBER 4321 ") == [4321]
    assert browser.get("document.getElementById('count').textContent") == "1 of 5,000 lines"
    assert browser.get("location.hash") == "#q=NUMBER+4321+"
    assert search("#77") == [77]
    assert search("nowhere") == []
    assert len(search("")) > 0

    orders = {
        "passes": lambda each: -each.passes,
        "fast": lambda each: -7 / each.passes,
        "slow": lambda each: 7 / each.passes,
        "margin": lambda each: min(each.margin),
    }
    for sort, key in orders.items():
        browser.open(tmp_path / "t.html", f"#sort={sort}")
        found = browser.get(LINES)
        assert found == [each.line for each in sorted(trace, key=key)][: len(found)], sort
    assert browser.troubles() == []


def test_failed_lines_come_last_where_sorted(browser: Browser, tmp_path: Path) -> None:
    error = {"code": "E203", "name": "InputTooLong", "where": "in:1", "message": "9 > 8", "fix": "cut it"}
    trace = [Traced(1, 1, "s", error=error), sentence(2), sentence(3, passes=5)]
    for sort, wanted in (("line", [1, 2, 3]), ("slow", [3, 2, 1]), ("fast", [2, 3, 1]), ("lprob", [2, 3, 1])):
        browser.open(save(tmp_path / "t.html", trace), f"#sort={sort}")
        assert browser.get(LINES) == wanted, sort
    assert (
        browser.get("document.querySelector('.error').textContent")
        == "E203 InputTooLong: in:1: 9 > 8. Fix: cut it."
    )
    browser.open(tmp_path / "t.html", "#q=toolong&sort=nonsense")
    assert browser.get(LINES) == [1]
    assert browser.troubles() == []


def test_a_graph_is_drawn_with_its_path(browser: Browser, tmp_path: Path) -> None:
    without = {**GRAPH, "path": [], "emitted": []}
    browser.open(save(tmp_path / "t.html", [sentence(1, graph=GRAPH), sentence(2, graph=without)]))
    assert browser.get("document.querySelectorAll('svg').length") == 0  # until it is asked for
    browser.get("document.querySelectorAll('article details').forEach(e => e.open = true)")
    browser.settle()
    counts = (
        "[...document.querySelectorAll('svg')].map(s => ['circle', '.on', '.path', '.link']"
        ".map(q => s.querySelectorAll(q).length))"
    )
    assert browser.get(counts) == [[4, 3, 2, 1], [4, 0, 0, 3]]
    labels = "[...document.querySelector('svg').querySelectorAll('text')].map(e => e.textContent)"
    assert browser.get(labels) == ["start", "she", "goes", "</s>"]
    browser.point("svg g:nth-of-type(1) circle")
    assert browser.get("document.getElementById('tip').textContent") == (
        "vertex 0 of 9\nnext: 3 77.9 %, 5 13.5 %"
    )
    browser.point("svg g:nth-of-type(2) circle")
    assert browser.get("document.getElementById('tip').textContent") == (
        "vertex 3 of 9\nemits she\nwords: she 60.7 %, he 22.3 %\nnext: 8 88.2 %"
    )
    assert browser.troubles() == []


def heard_words(**curves: Any) -> speech.Alignment:
    """Two words in 0.4 s, ten positions and 40 frames of 8 bands, each louder than the one below it."""
    frames = np.arange(8, dtype=np.float32) + np.linspace(0, 0.5, 40, dtype=np.float32)[:, None]
    times = np.array([[0.04, 0.12], [0.2, 0.4]])
    return speech.Alignment(frames, 0.4, 0.04, ("▁she", "▁<b>x</b>"), times, (4, 5), **curves)


def test_what_was_heard_is_drawn_where_it_was(browser: Browser, tmp_path: Path) -> None:
    probs = np.full((10, 6), 0.02, np.float32)
    probs[:, 0] = 0.9
    probs[1:3, [0, 4]] = 0.02, 0.9
    probs[5:, [0, 5]] = 0.02, 0.9
    weights = np.full(10, 0.25, np.float32)
    both = [heard_words(probs=probs, blank=0), heard_words(weights=weights)]
    values = {index: speech.for_page(each) for index, each in enumerate(both)}
    browser.open(save(tmp_path / "t.html", [sentence(1), sentence(2), sentence(3)], speech=values))
    pictures = "[...document.querySelectorAll('article')].map(a => a.querySelectorAll('svg').length)"
    assert browser.get(pictures) == [1, 1, 0]
    labels = "[...document.querySelectorAll('.heard text')].map(e => e.textContent)"
    assert browser.get(labels) == ["she", "<b>x</b>"] * 2
    # In shares of the spectrogram's width, which is all of the recording.
    places = browser.get(
        "[...document.querySelectorAll('svg')].map(s => {"
        "const i = s.querySelector('image').getBoundingClientRect();"
        "return [...s.querySelectorAll('.heard rect')].map(e => { const r = e.getBoundingClientRect();"
        "return [(r.left - i.left) / i.width, (r.right - i.left) / i.width]; }); })"
    )
    for found in places:
        assert np.array(found) == pytest.approx(np.array([[0.1, 0.3], [0.5, 1.0]]), abs=0.005)
    counts = (
        "[...document.querySelectorAll('svg')].map(s => ['.curve', '.area', '.weight', '.fire']"
        ".map(q => s.querySelectorAll(q).length))"
    )
    assert browser.get(counts) == [[4, 2, 0, 0], [1, 0, 10, 2]]
    # The browser's own reading of the picture: low bands at the bottom, loud ones dark.
    column = browser.get(
        "(async () => { const i = new Image(); i.src = document.querySelector('image').getAttribute('href');"
        "await i.decode();"
        "const c = document.createElement('canvas'); c.width = i.width; c.height = i.height;"
        "const d = c.getContext('2d'); d.drawImage(i, 0, 0);"
        "return [i.width, ...d.getImageData(20, 0, 1, i.height).data.filter((_, at) => at % 4 === 0)]; })()"
    )
    assert column[0] == 40
    assert len(column) == 9
    assert column[1:] == sorted(column[1:])
    browser.point(".heard rect")
    assert browser.get("document.getElementById('tip').textContent") == "she\n0.04 to 0.12 s"
    assert foreign(browser) == 0
    assert browser.troubles() == []


def test_light_and_dark(browser: Browser, tmp_path: Path) -> None:
    path = save(tmp_path / "t.html", [sentence(1)])
    grounds = []
    for scheme in ("light", "dark"):
        browser.call(
            "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]
        )
        browser.open(path)
        grounds.append(browser.get("getComputedStyle(document.body).backgroundColor"))
    browser.call("Emulation.setEmulatedMedia", features=[])
    assert grounds == ["rgb(255, 255, 255)", "rgb(21, 24, 28)"]
