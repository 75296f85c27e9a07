"""What tests of the report page share: the page taken apart, and a real browser that shows it."""

import io
import shutil
import subprocess
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
    _browse(address, folder, NOWHERE, scheme, window, "--hide-scrollbars", f"--screenshot={file}")
    return Image.open(io.BytesIO(file.read_bytes())).convert("RGB")


def pixels_of(image, colour):
    """How many pixels of a picture have just this colour, (red, green, blue)."""
    return sum(count for count, found in image.getcolors(image.width * image.height) if found == colour)


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
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    command += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    command += [f"--proxy-server={proxy}", f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=2000"]
    return subprocess.run([*command, *options, address], capture_output=True, timeout=120, check=True).stdout
