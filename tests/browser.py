"""Headless Chromium, driven by its DevTools protocol over a pipe: pages, clicks, keys, screenshots."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

PROGRAM = shutil.which("chromium")
WAIT_S = 60.0


class Browser:
    """One page."""

    def __init__(self, profile: Path) -> None:
        assert PROGRAM is not None
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        words = [
            PROGRAM,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--ignore-certificate-errors",
            f"--user-data-dir={profile}",
            "--remote-debugging-pipe",
            "--window-size=1280,1000",
            "about:blank",
        ]
        # It reads from descriptor 3 and writes to 4.
        redirected = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", redirected, "chromium", *words],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._reading = os.fdopen(ours_in, "rb")
        self._writing = os.fdopen(ours_out, "wb")
        self._sent = 0
        self._session: str | None = None
        self.errors: list[str] = []
        targets = self._call("Target.getTargets")["targetInfos"]
        page = next(each for each in targets if each["type"] == "page")
        attached = self._call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._writing.close()
        self._process.terminate()
        self._process.wait(WAIT_S)
        self._reading.close()

    def _call(self, method: str, **parameters: Any) -> Any:
        self._sent += 1
        message = {"id": self._sent, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._writing.write(json.dumps(message).encode() + b"\0")
        self._writing.flush()
        while True:
            answer = self._next()
            if answer.get("id") == self._sent:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def _next(self) -> dict[str, Any]:
        whole = bytearray()
        while not whole.endswith(b"\0"):
            data = self._reading.read(1)
            assert data, "the browser has ended"
            whole += data
        found: dict[str, Any] = json.loads(whole[:-1])
        if found.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(found["params"]["exceptionDetails"]))
        return found

    def open(self, url: str) -> None:
        """Go there."""
        self._call("Page.navigate", url=url)

    def value(self, expression: str) -> Any:
        """What an expression of JavaScript comes to in the page."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def text(self) -> str:
        """What the page shows."""
        return str(self.value("document.body ? document.body.innerText : ''"))

    def until(self, text: str) -> str:
        """Wait until the page shows it; the whole text."""
        deadline = time.monotonic() + WAIT_S
        while text not in (shown := self.text()):
            assert time.monotonic() < deadline, (text, shown)
            time.sleep(0.1)
        return shown

    def click(self, selector: str, text: str = "") -> None:
        """Press the first element of this kind, with this text, in its middle."""
        wanted = f"({json.dumps(selector)}, {json.dumps(text)})"
        place = self.value(
            "((selector, text) => { const found = [...document.querySelectorAll(selector)]"
            ".find((each) => each.textContent.includes(text)); if (!found) return null;"
            " found.scrollIntoView({ block: 'center' }); const box = found.getBoundingClientRect();"
            " return [box.x + box.width / 2, box.y + box.height / 2]; })" + wanted
        )
        assert place is not None, (selector, text, self.text())
        for kind in ("mousePressed", "mouseReleased"):
            where = {"x": place[0], "y": place[1], "button": "left", "clickCount": 1}
            self._call("Input.dispatchMouseEvent", type=kind, **where)

    def type(self, text: str) -> None:
        """Write into what has the focus."""
        self._call("Input.insertText", text=text)

    def screenshot(self, path: Path) -> None:
        """A picture of the whole page."""
        shot = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))
