"""A browser to click and type in: chromium, driven over its debugging pipe."""

import base64
import importlib.resources
import json
import os
import shutil
import subprocess
import time

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One page. `complaints` holds what it said on its console, and exceptions that nobody caught."""

    def __init__(self, profile):
        theirs_in, self._write = os.pipe()
        self._read, theirs_out = os.pipe()
        command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        command += ["--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]

        def wires():
            os.dup2(theirs_in, 13)
            os.dup2(theirs_out, 14)
            os.dup2(13, 3)
            os.dup2(14, 4)

        self._process = subprocess.Popen(
            command, preexec_fn=wires, pass_fds=(3, 4), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._number, self._rest, self._session, self._context, self.complaints = 0, b"", None, None, []
        self.fresh()

    def fresh(self, width=1100, height=1400):
        """Close the page, and open an empty one that knows nothing of it: no storage, no scheme, no complaints."""
        self._session = None
        if self._context:
            self.call("Target.disposeBrowserContext", browserContextId=self._context)
        self._context = self.call("Target.createBrowserContext")["browserContextId"]
        where = {"url": "about:blank", "browserContextId": self._context}
        target = self.call("Target.createTarget", **where)["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.resize(width, height)
        self.complaints.clear()
        return self

    def call(self, method, **params):
        """Call a method, and take note of what happens meanwhile."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return answer["result"]

    def _next(self):
        while b"\0" not in self._rest:
            new = os.read(self._read, 1 << 20)
            assert new, "the browser is gone"
            self._rest += new
        one, _, self._rest = self._rest.partition(b"\0")
        answer = json.loads(one)
        if answer.get("method") in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
            self.complaints.append(answer["params"])
        return answer

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def ask(self, expression):
        """Evaluate an expression on the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def grave(self):
        """What axe-core calls serious or critical on the page as it is now."""
        axe = importlib.resources.files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8")
        self.ask(f"{axe}; true")
        violations = json.loads(self.ask("axe.run().then(found => JSON.stringify(found.violations))"))
        return [
            (one["id"], [node["html"][:200] for node in one["nodes"][:3]])
            for one in violations
            if one["impact"] in ("serious", "critical")
        ]

    def until(self, expression, seconds=60):
        """Wait until something holds on the page."""
        end = time.monotonic() + seconds
        while not self.ask(expression):
            assert time.monotonic() < end, f"never: {expression}; {self.complaints}"
            time.sleep(0.05)

    def type(self, text):
        """Type into what has the focus."""
        self.call("Input.insertText", text=text)

    def press(self, key, **more):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, **more)

    def at(self, selector):
        """Return the middle of an element, in the middle of the window."""
        self.ask(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center'}})")
        box = self.ask(f"JSON.stringify(document.querySelector({json.dumps(selector)}).getBoundingClientRect())")
        box = json.loads(box)
        return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    def click(self, selector):
        x, y = self.at(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def hover(self, x, y):
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def resize(self, width, height, mobile=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)

    def scheme(self, name):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def picture(self, file):
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self):
        self._process.terminate()
        self._process.wait(30)
        os.close(self._write)
        os.close(self._read)
