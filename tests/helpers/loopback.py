"""Stubs served on loopback, as clients meet them."""

import threading
import time
from contextlib import contextmanager


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
