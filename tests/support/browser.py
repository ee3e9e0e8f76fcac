"""A headless Chromium that tests drive over a pipe, by its DevTools protocol."""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

# Chromium hears at descriptor 3 and tells at 4.
LAUNCH = (
    "import os, sys; [os.dup2(int(sys.argv[i]), i + 2) for i in (1, 2)]; os.execv(sys.argv[3], sys.argv[3:])"
)
PATIENCE = 120  # seconds for an answer
# Of keys that do something: the number by which Chromium knows them, and the text that they type.
KEYS = {
    "Tab": (9, ""),
    "Enter": (13, "\r"),
    " ": (32, " "),
    "Escape": (27, ""),
    "End": (35, ""),
    "Home": (36, ""),
    "ArrowLeft": (37, ""),
    "ArrowRight": (39, ""),
    "ArrowDown": (40, ""),
}
CTRL, SHIFT = 2, 8  # modifiers


class NavigatedError(Exception):
    """The page was left while it was asked for something."""


class Browser:
    """A headless Chromium that is spoken to over a pipe, by its DevTools protocol."""

    def __init__(self, command: str, home: Path) -> None:
        (hears, self.tell), (self.hear, tells) = os.pipe(), os.pipe()
        theirs = [fcntl.fcntl(end, fcntl.F_DUPFD, 20) for end in (hears, tells)]  # clear of 3 and 4
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run"]
        self.process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, *map(str, theirs), command, *flags, f"--user-data-dir={home}"],
            pass_fds=theirs,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (hears, tells, *theirs):
            os.close(end)
        self.heard = bytearray()
        self.events: list[dict[str, Any]] = []
        self.count = 0
        self.session: str | None = None
        self.own = "file:"  # beginning of the addresses that a page may load

    def start(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for room in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{room}.enable")
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.tell, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == self.count:
                if "navigated or closed" in str(answer.get("error")):
                    raise NavigatedError(method)
                assert "error" not in answer, (method, answer["error"])
                return dict(answer["result"])
            self.events.append(answer)

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self.heard:
            assert select.select([self.hear], [], [], PATIENCE)[0], "the browser does not answer"
            part = os.read(self.hear, 1 << 16)
            assert part, "the browser is gone"
            self.heard += part
        text, _, self.heard = self.heard.partition(b"\0")
        return dict(json.loads(text))

    def open(self, page: Path | str, address: str = "") -> None:
        """Loads a page anew, of a file or a server; returns when it is drawn."""
        self.own = page if isinstance(page, str) else "file:"
        self.events.clear()
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=f"{page if isinstance(page, str) else page.as_uri()}{address}")
        self.loaded()

    def loaded(self) -> None:
        """Waits until a page is loaded and drawn."""
        self.get("new Promise(r => document.readyState === 'complete' ? r() : addEventListener('load', r))")
        self.settle()

    def settle(self) -> None:
        """Waits until what was scrolled into sight is drawn."""
        self.get(
            "new Promise(r => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(r, 50))))"
        )

    def get(self, expression: str) -> Any:
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, expression: str) -> None:
        """Waits until an expression is true, on the page that follows if this one is left meanwhile."""
        ends = time.monotonic() + PATIENCE
        while True:
            with suppress(NavigatedError):
                if self.get(expression):
                    return
            assert time.monotonic() < ends, expression
            time.sleep(0.02)

    def leave(self, method: str, **params: Any) -> None:
        """Calls what leaves the page, and waits for the next one."""
        own = self.count  # a page that comes back from the cache has another number
        self.get(f"window.left = {own}")
        self.call(method, **params)
        self.until(f"window.left !== {own} && document.readyState === 'complete'")

    def press(self, key: str, modifiers: int = 0) -> None:
        code, text = KEYS[key]
        down: dict[str, Any] = (
            {"type": "rawKeyDown"} if not text or modifiers else {"type": "keyDown", "text": text}
        )
        for event in (down, {"type": "keyUp"}):
            self.call(
                "Input.dispatchKeyEvent",
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                modifiers=modifiers,
                **event,
            )

    def type(self, text: str) -> None:
        """Types into what has the focus."""
        self.call("Input.insertText", text=text)

    def click(self, selector: str) -> None:
        """Clicks on the middle of an element."""
        x, y = self.point(selector)
        for event in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=event, x=x, y=y, button="left", clickCount=1)

    def drop(self, selector: str, *paths: Path) -> None:
        """Drops files on the middle of an element."""
        x, y = self.point(selector)
        data = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}
        for event in ("dragEnter", "dragOver", "drop"):
            self.call("Input.dispatchDragEvent", type=event, x=x, y=y, data=data)

    def choose_files(self, selector: str, *paths: Path) -> None:
        """Chooses files in an input."""
        found = self.call("Runtime.evaluate", expression=f"document.querySelector({json.dumps(selector)})")
        files = [str(path) for path in paths]
        self.call("DOM.setFileInputFiles", files=files, objectId=found["result"]["objectId"])

    def point(self, selector: str) -> tuple[float, float]:
        """Moves the mouse to the middle of an element, which it gives."""
        find = f"document.querySelector({json.dumps(selector)})"
        where = self.get(
            "(e => { e.scrollIntoView({block: 'center'}); const r = e.getBoundingClientRect(); "
            "return [r.x + r.width / 2, r.y + r.height / 2]; })" + f"({find})"
        )
        self.settle()
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=0, y=0)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=where[0], y=where[1])
        return where[0], where[1]

    def emulate(self, **features: str) -> None:
        """Makes a page believe in media features, such as a dark scheme; no other than these."""
        named = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", features=named)

    def troubles(self) -> list[Any]:
        """What the page complained of, and what it asked for beside itself."""
        found: list[Any] = []
        for event in self.events:
            params = event.get("params", {})
            if event.get("method") == "Network.requestWillBeSent":
                url = params["request"]["url"]
                found += [url] if not url.startswith((self.own, "data:", "about:")) else []
            elif event.get("method") in (
                "Runtime.exceptionThrown",
                "Log.entryAdded",
                "Runtime.consoleAPICalled",
            ):
                found.append(params)
        return found

    def close(self) -> None:
        os.close(self.tell)
        os.close(self.hear)
        self.process.kill()
        self.process.wait()


NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome", "chromium-headless-shell")


def started(home: Path) -> Iterator[Browser]:
    """A browser for a fixture, with a folder of its own; skips where there is none."""
    command = os.environ.get("NARTK_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if command is None:
        pytest.skip("no Chromium on this machine (NARTK_CHROMIUM names one)")
    found = Browser(command, home)
    try:
        found.start()
        yield found
    finally:
        found.close()
