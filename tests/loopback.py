"""Applications and stubs served on loopback, as clients meet them."""

import threading
import time
from contextlib import contextmanager

import uvicorn


@contextmanager
def served(app):
    """Serve an application while the block runs; gives its address."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def serving(stub):
    """Run a server of the standard library in a thread while the block runs."""
    thread = threading.Thread(target=stub.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield stub
    finally:
        stub.shutdown()
        stub.server_close()
        thread.join()


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
