"""What tests of the report page share: the page taken apart, and a real browser that shows it."""

import base64
import fcntl
import io
import json
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from PIL import Image

VOID_TAGS = {"meta", "img", "input"}
BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
needs_browser = pytest.mark.skipif(
    BROWSER is None, reason="no Chromium on this machine; install one, such as Debian's package `chromium`"
)
NOWHERE = "127.0.0.1:9"  # a proxy that nobody is behind: the network is off


class Page(HTMLParser):
    """Elements of a page with their parents; raises at a tag that closes another one than the open one."""

    def __init__(self, html):
        super().__init__()
        self.elements, self.open = [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        element = {"tag": tag, "attrs": dict(attrs), "text": "", "parent": self.open[-1] if self.open else None}
        self.elements.append(element)
        if tag not in VOID_TAGS:
            self.open.append(element)

    def handle_endtag(self, tag):
        assert self.open.pop()["tag"] == tag

    def handle_data(self, data):
        for element in self.open:
            element["text"] += data

    def with_class(self, name):
        return [element for element in self.elements if name in element["attrs"].get("class", "").split()]

    def with_tag(self, tag):
        return [element for element in self.elements if element["tag"] == tag]

    def texts(self, name):
        """Of the elements with a class, their white space made one space."""
        return [" ".join(element["text"].split()) for element in self.with_class(name)]


def page_of(path):
    return Page(path.read_text(encoding="utf-8"))


def enclosing(element, name):
    """The nearest element around this one that has the class."""
    while name not in element["attrs"].get("class", "").split():
        element = element["parent"]
    return element


def is_hidden(element):
    while element is not None:
        if "hidden" in element["attrs"]:
            return True
        element = element["parent"]
    return False


def dump_dom(address, folder, proxy=NOWHERE):
    """What a browser has made of the page after its script ran."""
    return _browse(address, folder, proxy, "--dump-dom").decode("utf-8")


def screenshot(address, folder, *, dark=False, size=(1280, 1400)):
    """What a reader sees of the page."""
    file = folder / "screenshot.png"
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    window = f"--window-size={size[0]},{size[1]}"
    _browse(address, folder, NOWHERE, scheme, window, f"--screenshot={file}")
    return Image.open(io.BytesIO(file.read_bytes())).convert("RGB")


def pixels_of(image, colour):
    """How many pixels of an image have just this colour, (red, green, blue)."""
    return sum(count for count, found in image.getcolors(image.width * image.height) if found == colour)


class Tab:
    """A page in a real browser that is resized, pointed at and asked, over Chromium's DevTools protocol.

    Attributes:
        errors: what the console said is wrong, and what a script raised.
        requests: addresses that were asked for, the page's own and data: left out.
    """

    def __init__(self, address, folder, *, dark=False, size=(1280, 900)):
        self.address, self.errors, self.requests, self._id = address, [], [], 0
        (down, self._down), (self._up, up) = _high_pipe(), _high_pipe()
        # DevTools reads commands from file 3 and answers into file 4
        code = f"import os, sys; os.dup2({down}, 3); os.dup2({up}, 4); os.execv(sys.argv[1], sys.argv[1:])"
        command = [sys.executable, "-c", code, *_command(folder, NOWHERE), "--remote-debugging-pipe", "about:blank"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, pass_fds=(down, up), **quiet)
        os.close(down)
        os.close(up)
        self._replies = os.fdopen(self._up, "rb")
        self._session = None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")
        self.resize(*size)
        self.set_dark(dark)
        self.send("Page.navigate", url=address)
        self._until(lambda message: message.get("method") == "Page.loadEventFired")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()
        self._replies.close()
        os.close(self._down)

    def send(self, method, **parameters):
        """The result of a command."""
        self._id += 1
        message = {"id": self._id, "method": method, "params": parameters, "sessionId": self._session}
        content = {name: value for name, value in message.items() if value is not None}
        os.write(self._down, json.dumps(content).encode() + b"\0")
        return self._until(lambda message: message.get("id") == self._id)["result"]

    def ask(self, expression):
        """The value of an expression of JavaScript, after what was begun is done."""
        script = f"new Promise(done => requestAnimationFrame(() => setTimeout(() => done({expression}))))"
        result = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def resize(self, width, height):
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def set_dark(self, dark):
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[feature])

    def point_at(self, selector, across=0.5, *, click=False):
        """Move the mouse to an element, so much of its width from its left; press the button there if told to."""
        self._mouse(selector, across, "mouseMoved", *(("mousePressed", "mouseReleased") if click else ()))

    def drag(self, selector, start, end):
        """Drag the mouse over an element, from one part of its width to another."""
        self._mouse(selector, start, "mouseMoved", "mousePressed")
        self._mouse(selector, end, "mouseMoved", "mouseReleased")

    def _mouse(self, selector, across, *kinds):
        element = f"document.querySelector({json.dumps(selector)})"
        self.ask(f"{element}.scrollIntoView({{block: 'center'}})")
        box = f"{element}.getBoundingClientRect()"
        x, y = self.ask(f"(({{x, y, width, height}}) => [x + {across} * width, y + height / 2])({box})")
        for kind in kinds:
            button = "none" if kind == "mouseMoved" else "left"
            self.send("Input.dispatchMouseEvent", type=kind, button=button, clickCount=1, x=x, y=y)

    def screenshot(self):
        found = self.send("Page.captureScreenshot")["data"]
        return Image.open(io.BytesIO(base64.b64decode(found))).convert("RGB")

    def _until(self, is_wanted):
        while True:
            message = self._read()
            self._note(message)
            if is_wanted(message):
                assert "error" not in message, message
                return message

    def _read(self):
        content = bytearray()
        while (byte := self._replies.read(1)) != b"\0":
            assert byte, "the browser has ended"
            content += byte
        return json.loads(content)

    def _note(self, message):
        parameters = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.errors.append(parameters["exceptionDetails"])
            case "Runtime.consoleAPICalled" if parameters["type"] in ("error", "warning", "assert"):
                self.errors.append(parameters["args"])
            case "Log.entryAdded" if parameters["entry"]["level"] in ("error", "warning"):
                self.errors.append(parameters["entry"])
            case "Network.requestWillBeSent":
                asked = parameters["request"]["url"]
                if not asked.startswith("data:") and asked != self.address.partition("#")[0]:
                    self.requests.append(asked)


def _high_pipe():
    """A pipe whose ends are none of the files 3 and 4."""
    ends = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return high


@contextmanager
def listening_proxy():
    """A proxy that lets nothing through; yields its address and the addresses that it was asked for."""
    asked = []

    class Listening(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_error(404)

        do_POST = do_CONNECT = do_GET

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Listening) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}", asked
        server.shutdown()


def _browse(address, folder, proxy, *options):
    command = [*_command(folder, proxy), "--virtual-time-budget=2000", *options, address]
    return subprocess.run(command, capture_output=True, timeout=120, check=True).stdout


def _command(folder, proxy):
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    command += ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"]
    return [*command, f"--proxy-server={proxy}", f"--user-data-dir={folder / 'profile'}"]
