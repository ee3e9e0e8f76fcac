"""The page of the server in a headless Chromium: what people type, drop and press, and what they then see.

Oracles are `Model.decode` without a server, and the words and times of recordings. After each scenario the
browser has complained of nothing and asked nobody else, and axe-core finds nothing serious in both schemes.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.browser import CTRL, SHIFT, Browser, started
from support.speech_models import save_random_speech
from support.spoken_numbers import spoken_numbers, spoken_places

import nartk
from nartk.serving.model import Model

for needed in ("httpx", "uvicorn", "fastapi", "prometheus_client", "soundfile"):
    pytest.importorskip(needed)

from support.serving import SlowPasses, serving  # noqa: E402

from nartk.server import page  # noqa: E402
from nartk.server.service import Limits, Service  # noqa: E402

LINES = ("I has a dog 🙂 and he like me very much.", "", "She go home yesterday , becuase it were late.")
NASTY = "<img src=x onerror='window.hacked = 1'>"
BUSY = "document.getElementById('decode').ariaDisabled === 'true'"
KEY = "a key of the server's"


@pytest.fixture(scope="module")
def corrector() -> Model:
    # A guard that weighs edits takes a pass of its own.
    return nartk.load("gec-en", threads=1, min_edit_confidence=0)


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], list[str]]:
    names, words = spoken_numbers(tmp_path_factory.mktemp("sounds"), 2)
    return [Path(name) for name in names], words


@pytest.fixture(scope="module")
def models(corrector: Model, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    folder = tmp_path_factory.mktemp("models") / "fires"
    save_random_speech(folder, "paraformer", 5, strategy="paraformer")
    speech = {name: nartk.load(name, threads=1) for name in ("asr-digits", "st-digits")}
    return {"gec-en": corrector, **speech, "fires": nartk.load(str(folder), threads=1)}


@pytest.fixture(scope="module")
def address(models: dict[str, Model]) -> Iterator[str]:
    with serving(Service(models, Limits(lines=4))) as client:
        yield f"{client.base_url}/"


@pytest.fixture(scope="module")
def whole_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    yield from started(tmp_path_factory.mktemp("browser"))


@pytest.fixture
def browser(whole_browser: Browser) -> Browser:
    whole_browser.emulate(prefers_reduced_motion="reduce")
    return whole_browser


def axe_script() -> str | None:
    """Axe-core's script, of the file that NARTK_AXE names or of axe-core-python; None: there is none."""
    if "NARTK_AXE" in os.environ:
        return Path(os.environ["NARTK_AXE"]).read_text(encoding="utf-8")
    if find_spec("axe_core_python") is None:
        return None
    return (files("axe_core_python") / "axe.min.js").read_text(encoding="utf-8")


AXE = axe_script()


def barriers(browser: Browser) -> list[list[str]]:
    """What axe-core finds that is serious or critical: rules and elements."""
    assert AXE is not None
    browser.get(f"{AXE};0")
    found = browser.get(
        "axe.run().then(found => found.violations"
        ".filter(each => ['serious', 'critical'].includes(each.impact))"
        ".flatMap(each => each.nodes.map(node => [each.id, node.html])))"
    )
    return [*found]


def require_sound(browser: Browser, refused: int | None = None) -> None:
    """Asserts that nothing is wrong with what is shown, in the light and in the dark.

    Args:
        refused: Status of a request that the server has refused, which Chromium logs.
    """
    logged = f"the server responded with a status of {refused} "
    troubles = browser.troubles()
    told = [each for each in troubles if logged in str(each)]
    assert bool(told) == (refused is not None)
    assert [each for each in troubles if each not in told] == []
    assert browser.get("typeof window.hacked") == "undefined"
    for scheme in ("light", "dark") if AXE is not None else ():
        browser.emulate(prefers_color_scheme=scheme, prefers_reduced_motion="reduce")
        assert barriers(browser) == [], scheme


def show(browser: Browser, address: str, model: str = "gec-en", strategy: str = "") -> None:
    """Opens the page with a model and a strategy."""
    browser.open(address, f"#model={model}&strategy={strategy}")
    browser.until("document.querySelectorAll('#strategy option').length > 0")


def write(browser: Browser, text: str) -> None:
    browser.get("document.getElementById('text').select()")
    browser.type(text)


def choose(browser: Browser, selector: str, value: str) -> None:
    browser.get(
        f"(e => {{ e.value = {json.dumps(value)}; e.dispatchEvent(new Event('change')); }})"
        f"(document.querySelector({json.dumps(selector)}))"
    )


def settled(browser: Browser) -> str:
    """Waits until nothing is decoded any more, and gives what the page tells."""
    browser.until(f"!({BUSY})")
    browser.settle()
    return str(told(browser, "status"))


def decode(browser: Browser) -> str:
    browser.click("#decode")
    return settled(browser)


def told(browser: Browser, name: str) -> Any:
    return browser.get(f"document.getElementById('{name}').textContent")


def outputs(browser: Browser) -> list[str]:
    return str(browser.get("document.getElementById('outputs').value")).split("\n")


def texts(browser: Browser, selector: str) -> list[str]:
    return [*browser.get(f"[...document.querySelectorAll('{selector}')].map(e => e.textContent)")]


def focused(browser: Browser) -> str:
    return str(browser.get("document.activeElement.id || document.activeElement.className"))


def tab_to(browser: Browser, wanted: str, modifiers: int = 0) -> None:
    """Presses Tab until what is wanted has the focus, which is seen wherever it is."""
    for _ in range(60):
        browser.press("Tab", modifiers)
        assert browser.get("getComputedStyle(document.activeElement).outlineStyle") != "none", focused(
            browser
        )
        if focused(browser) == wanted:
            return
    pytest.fail(f"Tab does not come to {wanted}")


# Scenarios


def test_text_is_typed_and_decoded_beside_greedy_search(
    browser: Browser, address: str, corrector: Model
) -> None:
    show(browser, address, strategy="iad")
    browser.click("#text")
    browser.type("\n".join(LINES))
    assert decode(browser) == "3 lines decoded by iad and by greedy."
    assert outputs(browser) == [each.text for each in corrector.decode(LINES, "iad")]
    traces = [each.trace or () for each in corrector.decode(LINES, "iad", trace=True)]
    tokens = sum(map(len, traces))
    passes = sum(each[-1].verifier_pass for each in traces if each)
    drafted = sum(token.origin == "draft" for each in traces for token in each)
    (iad, greedy) = browser.get(
        "[...document.querySelectorAll('tbody tr')].map(r => [...r.children].map(e => e.textContent))"
    )
    assert iad[:3] == ["iad", f"{passes}", f"{tokens / passes:.2f}"]
    assert iad[3].startswith(f"{drafted} of ")
    assert greedy[:4] == ["greedy", f"{tokens}", "1.00", "–"]  # a token a pass
    assert all(re.fullmatch(r"[\d.]+ ms", row[4]) for row in (iad, greedy))
    assert told(browser, "verdict").startswith(
        f"The outputs are identical; greedy takes {tokens / passes:.2f} times the passes of iad, and "
    )
    classes = browser.get("[...document.querySelectorAll('article .token')].map(e => e.classList[1])")
    assert classes == [token.origin for each in traces for token in each]
    require_sound(browser)


def test_tokens_are_seen_as_they_come_and_again_pass_by_pass(browser: Browser, corrector: Model) -> None:
    slow = replace(corrector, passes=SlowPasses(corrector.passes, 0.15))
    with serving(Service({"gec-en": slow})) as client:
        browser.emulate(prefers_reduced_motion="no-preference")
        show(browser, f"{client.base_url}/", strategy="iad")
        browser.get("document.getElementById('compare').click()")
        write(browser, LINES[2])
        browser.click("#decode")
        seen = []
        while browser.get(BUSY):
            seen.append("".join(texts(browser, ".live")))
        (line,) = corrector.decode([LINES[2]], "iad", trace=True)
        grown = [*dict.fromkeys(each for each in seen if each)]
        assert len(grown) > 1
        assert all(" ".join(line.pieces).replace("▁", "").startswith(each.strip()[:3]) for each in grown)
        assert all(after.startswith(before) for before, after in itertools.pairwise(grown))
        later = "[...document.querySelectorAll('article .token')].map(e => e.classList.contains('later'))"
        assert browser.get(f"document.getElementById('replay').click(), {later}") == [
            token.verifier_pass > 1 for token in line.trace or ()
        ]
        browser.until(f"!{later}.includes(true)")
        browser.emulate(prefers_reduced_motion="reduce")
        browser.click("#decode")
        browser.until("document.querySelector('.live') !== null")
        browser.until("document.querySelector('.live') === null")
        assert not any(browser.get(later))  # who wants no motion sees none
        settled(browser)
        require_sound(browser)
        browser.click("#decode")
        browser.until("document.querySelector('.live') !== null")
        browser.click("#stop")
        assert settled(browser) == "Stopped."
        require_sound(browser)


def test_another_strategy_with_options(browser: Browser, address: str, corrector: Model) -> None:
    show(browser, address)
    choose(browser, "#strategy", "beam")
    assert told(browser, "promise").startswith("Promise of beam: approximate")
    browser.get("document.getElementById('options-part').open = true")
    for name, value in (("beam_size", "3"), ("nbest", "2")):
        browser.click(f"[name={name}]")
        browser.type(value)
    write(browser, LINES[0])
    decode(browser)
    best = corrector.decode(LINES[0], "beam", beam_size=3, nbest=2)
    assert outputs(browser) == [best.text]
    browser.get("document.querySelector('article details').open = true")
    browser.settle()
    (other,) = texts(browser, ".others li")
    assert other.startswith(f"{best.alternatives[0].text} (")
    choose(browser, "#view", "passes")
    assert texts(browser, "article .passes .settled")
    browser.call(
        "Emulation.setDeviceMetricsOverride", width=380, height=800, deviceScaleFactor=1, mobile=True
    )
    assert browser.get("document.documentElement.scrollWidth") == 380  # nothing is cut off
    require_sound(browser)
    browser.call("Emulation.clearDeviceMetricsOverride")
    browser.click("[name=nbest]")
    browser.type("0")  # 20 hypotheses of a beam of 3
    decode(browser)
    error = told(browser, "error")
    assert "nbest" in error
    assert "Fix: " in error
    require_sound(browser, refused=400)


def test_an_edit_is_undone_by_a_click(browser: Browser, address: str, corrector: Model) -> None:
    show(browser, address)
    text = "She go home 🙂.\nThey is here."
    write(browser, text)
    decode(browser)
    corrected = [each.text for each in corrector.decode(text.split("\n"))]
    assert outputs(browser) == corrected == ["She went home 🙂.", "They are here."]
    assert texts(browser, ".edit") == ["gowent", "isare"]
    browser.click("article:nth-child(2) .edit")
    assert outputs(browser) == ["She went home 🙂.", "They is here."]
    assert told(browser, "status") == "Undone: “is” stays."
    browser.click("article:nth-child(1) .edit")
    assert outputs(browser) == text.split("\n")
    states = "[...document.querySelectorAll('.edit')].map(e => e.getAttribute('aria-pressed'))"
    assert browser.get(states) == ["false", "false"]
    choose(browser, "#view", "passes")
    assert browser.get(states) == ["false", "false"]  # another view forgets nothing
    browser.click("article:nth-child(1) .edit")
    assert outputs(browser) == ["She went home 🙂.", "They is here."]
    require_sound(browser)


def test_the_keyboard_alone(browser: Browser, address: str) -> None:
    show(browser, address, strategy="iad")
    tab_to(browser, "text")
    browser.type("She go home.")
    tab_to(browser, "decode")
    browser.press("Enter")
    settled(browser)
    assert outputs(browser) == ["She went home."]
    assert focused(browser) == "decode"
    tab_to(browser, "edit")
    browser.press(" ")
    assert outputs(browser) == ["She go home."]
    browser.press("Enter")
    assert outputs(browser) == ["She went home."]
    browser.press("Tab")  # to the tokens, of which the arrows choose
    assert told(browser, "tip").startswith("▁She\ndraft: drafted and accepted\npass 1 of ")
    browser.press("ArrowRight")
    assert told(browser, "tip").startswith("▁went\nrollback: ")
    browser.press("Escape")
    browser.get("dispatchEvent(new Event('scroll')), 0")  # does not bring back what is closed
    assert browser.get("document.getElementById('tip').hidden")
    tab_to(browser, "text", SHIFT)
    browser.get("document.getElementById('text').select()")
    browser.type("They is here.")
    browser.press("Enter", CTRL)
    settled(browser)
    assert outputs(browser) == ["They are here."]
    require_sound(browser)


def test_a_text_file_is_dropped_and_is_never_markup(
    browser: Browser, address: str, corrector: Model, tmp_path: Path
) -> None:
    lines = [NASTY, "She go <b>home</b> .", "</textarea><script>window.hacked = 1</script>"]
    (tmp_path / "in.txt").write_bytes("\r\n".join([*lines, ""]).encode())
    (tmp_path / "in.wrong").write_bytes(b"caf\xe9")
    show(browser, address)
    choose(browser, "#model", "asr-digits")
    browser.drop("#form", tmp_path / "in.txt")  # the model that reads text is chosen
    browser.until("document.getElementById('text').value !== ''")
    assert decode(browser).startswith("3 lines decoded")
    wanted = [each.text for each in corrector.decode(lines)]
    assert "<img src=x" in wanted[0]  # the model's output is markup, too
    assert outputs(browser) == wanted
    assert browser.get("document.querySelectorAll('img, article b b, article script').length") == 0
    require_sound(browser)
    browser.drop("#form", tmp_path / "in.wrong")
    browser.until("document.getElementById('error').textContent !== ''")
    assert told(browser, "error").startswith("in.wrong is no text in UTF-8. Fix: ")
    assert told(browser, "status") == ""
    require_sound(browser)


def test_hostile_answers_are_never_markup(browser: Browser, address: str) -> None:
    """Whatever the server answers: in each text that there is."""
    graph = {"size": 3, "vertices": [0, 1], "words": [[], [[NASTY, -1.0]]], "path": [0, 1],
             "links": [[0, 1, -0.5]], "emitted": [NASTY]}  # fmt: skip
    output = {
        "line": 0, "text": NASTY, "score": -1.0, "tokens": [NASTY], "passes": 1, "drafted": 0, "accepted": 0,
        "seconds": 0.1, "trace": [{"origin": "model", "pass": 1, "margin": None}], "lprob": [-1.0],
        "edits": [{"offset": 0, "length": 1, "text": NASTY}], "graph": graph, "unaligned": {"message": NASTY},
        "alternatives": [{"text": NASTY, "score": None}],
    }  # fmt: skip
    failed = {"line": 1, "text": "", "error": {"code": "E", "message": NASTY}}
    events = [
        ("partial", {"line": 0, "text": NASTY, "added": [NASTY]}),
        ("output", output),
        ("output", failed),
    ]
    show(browser, address)
    for last, told_of in (("end", {"seconds": 1.0}), ("error", {"message": NASTY, "code": 504})):
        body = "".join(
            f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in [*events, (last, told_of)]
        )
        browser.get(f"window.fetch = async () => new Response({json.dumps(body)}), 0")
        write(browser, "a\nb")
        decode(browser)
        browser.get("document.querySelectorAll('article details').forEach(e => e.open = true)")
        browser.settle()
        assert browser.get("document.querySelectorAll('img, main script').length") == 0
        assert outputs(browser) == [NASTY, ""]  # of the request that failed what had come before
        assert NASTY in texts(browser, "article:nth-child(2)")[0]
    assert (
        told(browser, "error")
        == f"{NASTY}. Fix: send less at once, or start nartk-serve with a longer --deadline."
    )
    require_sound(browser)


def test_a_sound_is_dropped_and_seen_where_its_words_are(
    browser: Browser, address: str, spoken: tuple[list[Path], list[str]]
) -> None:
    sounds, words = spoken
    show(browser, address)
    browser.drop("#form", *sounds)
    browser.until("document.querySelectorAll('#sound-names li').length === 2")
    decode(browser)
    assert outputs(browser) == words
    assert texts(browser, ".heard text") == " ".join(words).split()
    tips = browser.get("[...document.querySelectorAll('.heard')].map(e => e.dataset.tip)")
    begins = [float(tip.split("\n")[1].split(" to ")[0]) for tip in tips]
    places = [place for each in spoken_places(2) for place in each]
    for begin, (first, last) in zip(begins, places, strict=True):
        assert first - 0.1 < begin < last  # a spike of CTC lies within its word
    curves = browser.get("document.querySelectorAll('article:nth-child(1) .curve').length")
    assert curves == len(set(words[0].split())) + 2  # with the blank and other words
    require_sound(browser)


def test_graphs_and_fires_are_seen(
    browser: Browser, address: str, models: dict[str, Model], spoken: tuple[list[Path], list[str]]
) -> None:
    sounds, _ = spoken
    show(browser, address, "st-digits")
    browser.choose_files("#sound-files", sounds[0])
    browser.until("document.querySelectorAll('#sound-names li').length === 1")
    assert decode(browser) == "1 line decoded by dag-lookahead and by dag-greedy."
    (found,) = models["st-digits"].decode([str(sounds[0])])
    assert outputs(browser) == [found.text]
    on_path = texts(browser, ".speech .on text")
    assert on_path == ["start", *found.pieces]
    require_sound(browser)
    choose(browser, "#model", "fires")
    decode(browser)
    (found,) = models["fires"].decode([str(sounds[0])])
    assert outputs(browser) == [found.text]
    words = found.text.split()
    assert texts(browser, ".heard text") == words
    assert len(texts(browser, ".speech .fire")) in (
        len(words),
        len(words) - 1,
    )  # the last may be behind the end
    assert len(texts(browser, ".speech .weight")) > 0
    assert (
        decode(browser) == "1 line decoded by paraformer."
    )  # which has no greedy search to be compared with
    require_sound(browser)


def test_errors_of_the_server_are_shown_with_their_remedy(
    browser: Browser, address: str, corrector: Model
) -> None:
    show(browser, address)
    decode(browser)
    assert told(browser, "error") == "there is no text. Fix: type a line, or drop a file."
    require_sound(browser)
    write(browser, "a\n" * 5)
    decode(browser)
    assert told(browser, "error") == "5 lines, more than 4. Fix: send less at once."
    assert browser.get("document.getElementById('results').hidden")
    require_sound(browser, refused=413)
    with serving(Service({"gec-en": corrector}, Limits(queue=1))) as client:
        show(browser, f"{client.base_url}/")
        write(browser, "a\nb")
        decode(browser)
        assert told(browser, "error") == (
            "0 lines wait already, of at most 1. Fix: send it again in a moment."
        )
        write(browser, "She go home.")  # and the page goes on
        decode(browser)
        assert (outputs(browser), told(browser, "error")) == (["She went home."], "")
        require_sound(browser, refused=429)


def test_a_server_with_keys(browser: Browser, corrector: Model) -> None:
    with serving(Service({"gec-en": corrector}, keys=[KEY])) as client:
        browser.open(f"{client.base_url}/")
        browser.until("document.getElementById('error').textContent !== ''")
        assert told(browser, "error") == (
            "the API key is missing or wrong. Fix: type a key of the server's under “API key”."
        )
        assert focused(browser) == "key"
        require_sound(browser, refused=401)
        browser.type(KEY)
        browser.press("Tab")
        browser.until("document.querySelectorAll('#strategy option').length > 0")
        write(browser, "She go home.")
        decode(browser)
        assert outputs(browser) == ["She went home."]
        kept = browser.get("[localStorage.length, sessionStorage.length, document.cookie, location.href]")
        assert kept[:3] == [0, 0, ""]
        assert KEY not in kept[3]


def test_the_address_keeps_model_and_strategy(browser: Browser, address: str) -> None:
    show(browser, address)
    choose(browser, "#model", "asr-digits")
    choose(browser, "#strategy", "ctc-beam")
    chosen = "['model', 'strategy'].map(name => document.getElementById(name).value)"
    browser.leave("Page.reload")
    browser.until("document.querySelectorAll('#strategy option').length > 0")
    assert browser.get(chosen) == ["asr-digits", "ctc-beam"]
    browser.leave("Page.navigate", url="about:blank")
    history = browser.call("Page.getNavigationHistory")
    before = history["entries"][history["currentIndex"] - 1]["id"]
    browser.leave("Page.navigateToHistoryEntry", entryId=before)
    browser.until("document.querySelectorAll('#strategy option').length > 0")
    assert browser.get(chosen) == ["asr-digits", "ctc-beam"]
    require_sound(browser)


def test_light_and_dark(browser: Browser, address: str) -> None:
    show(browser, address)
    grounds = []
    for scheme in ("light", "dark"):
        browser.emulate(prefers_color_scheme=scheme)
        grounds.append(browser.get("getComputedStyle(document.body).backgroundColor"))
    assert grounds == ["rgb(255, 255, 255)", "rgb(21, 24, 28)"]


def test_axe_finds_what_is_wrong(browser: Browser, address: str) -> None:
    """The check of all scenarios can fail."""
    if AXE is None:
        pytest.skip("no axe-core on this machine: axe-core-python brings it, NARTK_AXE names a file of it")
    show(browser, address)
    assert barriers(browser) == []
    browser.get("document.querySelector('label[for=text]').remove()")
    assert [rule for rule, _ in barriers(browser)] == ["label"]


# Without a browser


class Elements(HTMLParser):
    """The elements of a page with their attributes, and the text of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.inside += data if self.cdata_elem is not None else ""


def test_the_page_has_nothing_of_others_and_needs_no_key(corrector: Model) -> None:
    with serving(Service({"gec-en": corrector}, keys=[KEY])) as client:
        answers = [client.get("/"), *(client.get(f"/page/{name}") for name in page.FILES)]
        for answer in answers:
            assert answer.status_code == 200
            policy = dict(
                each.strip().split(" ", 1) for each in answer.headers["Content-Security-Policy"].split(";")
            )
            assert policy["default-src"] == "'none'"
            assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
            assert "unsafe" not in str(policy)
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
        for wrong in ("/page/__init__.py", "/page/..%2f__init__.py", "/page/none"):
            assert client.get(wrong).status_code == 404
        assert client.get("/v1/models").status_code == 401
    found = Elements(answers[0].text)
    assert found.inside.strip() == ""  # no script or style of the page's own stands in it
    links = [
        each for _, attributes in found.found for name, each in attributes.items() if name in ("src", "href")
    ]
    assert links == ["data:,", *(f"page/{name}" for name in page.FILES)]
    assert not any(name.startswith("on") or name == "style" for _, each in found.found for name in each)
    scripts = "".join(each.text for each in answers[1:])
    assert re.findall(r"url\(|@import|https?:[^\"]*", scripts) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\(", scripts)


def test_the_scripts_are_sound() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node on this machine")
    script = "".join(
        (files(package) / name).read_text(encoding="utf-8")
        for name, (package, type_) in page.FILES.items()
        if type_ == "text/javascript"
    )
    subprocess.run([node, "--check", "-"], input=script.encode(), check=True)
