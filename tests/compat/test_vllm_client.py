"""The client of a vLLM server that goes away; tests/engines has real ones."""

import inspect
import json
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
import requests
from processes import free_port
from trl.generation.vllm_client import VLLMClient
from trl.generation.vllm_generation import VLLMGeneration

from trl_mmreason.compat import vllm_client
from trl_mmreason.compat.vllm_client import ImageClient, ServerLost

HANGING = """
import socket, sys, threading
import requests
from trl_mmreason.compat.vllm_client import ImageClient, leave_waiting_threads

silent = socket.create_server(("127.0.0.1", 0))  # takes connections, and answers nothing
client = object.__new__(ImageClient)
client.session, client.base_url = requests.Session(), f"http://127.0.0.1:{silent.getsockname()[1]}"
client.model = "policy"
ask = lambda: client.generate([[1]], features=[{}])
threading.Thread(target=ask, daemon=True).start()
held = silent.accept()
if "leave" in sys.argv:
    leave_waiting_threads()
print("ends")
"""


def client_of(url):
    """A client of no vLLM, which TRL's constructor would ask for."""
    client = object.__new__(ImageClient)
    client.base_url, client.session = url, requests.Session()
    return client


def test_a_process_ends_although_its_threads_wait_for_a_server():
    done = subprocess.run(
        [sys.executable, "-c", HANGING, "leave"], timeout=120, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "ends\n"), done.stderr
    waiting = subprocess.Popen([sys.executable, "-c", HANGING], stdout=subprocess.PIPE, text=True)
    try:
        assert waiting.stdout.readline() == "ends\n"
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(timeout=3)  # else `leave_waiting_threads` can go
    finally:
        waiting.kill()
        waiting.wait()


def test_a_server_that_does_not_come_up_is_waited_for_and_then_lost(monkeypatch, caplog):
    monkeypatch.setattr(vllm_client, "_POLL_SECONDS", 0.01)
    client = client_of(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(ServerLost, match=r"the vLLM server at http://127.0.0.1:\d+ has not answered for 0 s"):
        client.wait_until_up(0.1)
    [record] = caplog.records
    assert "Training waits for it, for 0 s more (vllm_server_timeout)." in record.getMessage()


class Naming(BaseHTTPRequestHandler):
    """The endpoints of vLLM that name weights; `restarts` counts requests until it has forgotten the name."""

    name, restarts = "default", 0

    def do_GET(self):
        kind = type(self)
        kind.restarts -= 1
        kind.name = "default" if kind.restarts == 0 else kind.name
        self.answer({"weight_version": kind.name})

    def do_POST(self):
        type(self).name = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["new_version"]
        self.answer({})

    def answer(self, content):
        found = self.path in ("/weight_info", "/update_weight_version")
        self.send_response(200 if found else 404)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def naming(monkeypatch):
    """A client, and its server's handler."""
    monkeypatch.setattr(Naming, "name", "default")
    monkeypatch.setattr(Naming, "restarts", 0)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Naming)
    Thread(target=server.serve_forever, daemon=True).start()
    yield client_of(f"http://127.0.0.1:{server.server_port}"), Naming
    server.shutdown()
    server.server_close()


def test_weights_have_their_name_when_all_are_sent(naming):
    client, handler = naming
    with client.naming_weights("3 updates"):
        assert handler.name == "3 updates, unfinished"
    assert client.weights_name() == "3 updates"
    client.check_weights("3 updates")


def test_weights_of_a_server_that_is_started_anew_amid_them_get_no_name(naming):
    client, handler = naming
    handler.restarts = 1
    message = "has the weights 'default', not '3 updates, unfinished'"
    with pytest.raises(ServerLost, match=message), client.naming_weights("3 updates"):
        pass
    assert client.weights_name() == "default"


def test_a_vllm_that_names_no_weights_is_refused(naming):
    client, _ = naming
    client.base_url += "/elsewhere"
    with pytest.raises(RuntimeError, match="answered /weight_info with status 404.*generate_ahead=False"):
        client.weights_name()


def test_what_is_sent_alone_is_what_trl_sends():
    """`generate_alone` in compat/vllm.py makes the request that TRL's `generate` makes in its main process."""
    source = inspect.getsource(VLLMGeneration.generate)
    sent = source[source.index("sampling_params = {") : source.index("}", source.index("sampling_params = {"))]
    names = {line.split('"')[1] for line in sent.splitlines() if line.strip().startswith('"')}
    assert names == {
        *("n", "repetition_penalty", "temperature", "top_p", "top_k", "min_p", "max_tokens", "logprobs"),
        *("structured_outputs_regex", "generation_kwargs"),
    }
    assert names | {"self", "prompts", "features"} == {*inspect.signature(VLLMClient.generate).parameters}
