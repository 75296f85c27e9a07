"""Several servers share the calls of one engine: three real ones of which one is killed, and some that are slow."""

import json
import os
import re
import signal
import threading
import time
import urllib.request
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest
from chat_stub import Handler, chat_stub
from processes import begin, free_port
from support import drawn_rows

from trl_mmreason.sampling import Request, SamplingParams, derive_seed, servers
from trl_mmreason.sampling.run import Summary, run
from trl_mmreason.sampling.server_engine import ServerEngine, ServerError
from trl_mmreason.sampling.store import Store

SAMPLING_PARAMS = SamplingParams(max_new_tokens=8)
ROWS = [{**row, "id": f"row-{k}"} for k, row in enumerate(drawn_rows(40))]


@contextmanager
def real_servers(model, count):
    """So many of `mmreason serve`; gives process and address of each."""
    places = [(f"http://127.0.0.1:{port}", port) for port in (free_port() for _ in range(count))]
    processes = [begin("command_run.py", "serve", model, "--port", port, "--batch-size", 2) for _, port in places]
    try:
        for process, (address, _) in zip(processes, places, strict=True):
            deadline = time.monotonic() + 120
            while not healthy(address):
                assert process.is_alive()
                assert time.monotonic() < deadline
                time.sleep(0.1)
        yield [(process, f"{address}/v1") for process, (address, _) in zip(processes, places, strict=True)]
    finally:
        for process in processes:
            process.kill()
            process.join()


def healthy(address):
    try:
        return urllib.request.urlopen(f"{address}/health", timeout=5).status == 200
    except OSError:
        return False


@contextmanager
def killed_amid(process, address, engine, calls):
    """Kill a server with SIGKILL as soon as it has answered so many calls and has another one in flight."""
    of_it = next(one for one in engine._addresses if one.base_url == address)

    def kill():
        while of_it.answered < calls:
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGKILL)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    yield
    assert not thread.is_alive(), "it was never killed"
    assert process.exitcode == -signal.SIGKILL


def requests_of(rows):
    return [
        Request(row["prompt"], row["images"], n=2, seed=derive_seed("several", row["id"], number))
        for number, row in enumerate(rows)
    ]


def work_of(engine, log):
    def work(units):
        log.extend((row["id"], index) for row, index in units)
        asked = [Request(row["prompt"], row["images"], seed=derive_seed(row["id"], index)) for row, index in units]
        return [{"text": samples[0].text} for samples in engine.sample(asked, SAMPLING_PARAMS)]

    return work


@pytest.mark.full
def test_one_of_three_servers_is_killed_and_nothing_is_lost_or_drawn_twice(checkpoints, tmp_path, caplog):
    model = checkpoints("qwen2_5_vl")
    with real_servers(model, 3) as started:
        (_, first), (_, second), (third_process, third) = started
        alone = ServerEngine(model, second, concurrency=2)
        expected = alone.sample(requests_of(ROWS), SAMPLING_PARAMS)
        run(whole := Store(tmp_path / "whole"), "answers", ROWS, work_of(alone, []), settings=alone.settings, n=2)
        assert len({samples[0].text for samples in expected}) > 20

        engine = ServerEngine(model, [first, second, third], concurrency=2)
        assert engine.settings == alone.settings  # a store may be resumed with other addresses
        assert engine.sample(requests_of(ROWS), SAMPLING_PARAMS) == expected
        assert all(address.answered >= 5 for address in engine._addresses)
        assert caplog.text == ""

        log, broken = [], Store(tmp_path / "broken")
        before = engine._addresses[2].answered
        with killed_amid(third_process, third, engine, before + 2):
            options = {"settings": engine.settings, "n": 2, "batch_size": 20, "retries": 0}
            summary = run(broken, "answers", ROWS, work_of(engine, log), **options)
        assert summary == Summary(80, 80, 0, 0, 0)
        assert sorted(log) == sorted((row["id"], index) for row in ROWS for index in range(2))  # each was asked once
        assert list(broken.records("answers")) == list(whole.records("answers"))
        [warning] = [record.getMessage() for record in caplog.records if record.name == servers.logger.name]
        told = rf"Nothing answers at {third} \(ConnectError\): its [12] calls in flight go"
        assert re.match(told, warning)

        assert engine.sample(requests_of(ROWS[:4]), SAMPLING_PARAMS) == expected[:4]
        assert len(caplog.records) == 1  # it stays dead without another word
        for process, _ in started:
            process.kill()
            process.join()
        engine = ServerEngine(model, [first, second, third], concurrency=2, max_retries=0)
        with pytest.raises(ServerError, match=r"^Nothing answers at http://127.0.0.1:\d+/v1 \(ConnectError\)\. Start"):
            engine.sample(requests_of(ROWS[:4]), SAMPLING_PARAMS)


class Slow(Handler):
    """Takes a quarter of a second a call."""

    seconds = 0.25

    def answer(self, body):
        time.sleep(self.seconds)
        super().answer(body)


class Quick(Slow):
    """Takes a twentieth of a second a call."""

    seconds = 0.05


def texts(count):
    return [Request([{"role": "user", "content": f"question {k}"}], seed=k) for k in range(count)]


@pytest.mark.full
def test_a_slow_server_gets_fewer_calls_and_all_servers_get_the_same_calls():
    with chat_stub(Slow) as slow, chat_stub(Quick) as quick, chat_stub() as one:
        ServerEngine("m", one.url).sample(texts(60), SamplingParams())
        engine = ServerEngine("m", [slow.url, quick.url], concurrency=2)
        engine.sample(texts(60), SamplingParams())
        assert len(slow.bodies) + len(quick.bodies) == 60  # each was asked once
        assert 8 <= len(slow.bodies) <= 20  # 5 times slower: a sixth of 60, and what it begins with
        assert sorted(map(json.dumps, slow.bodies + quick.bodies)) == sorted(map(json.dumps, one.bodies))
        # What they were like is remembered, so that they share even a batch that both have room for by their speed.
        before = len(slow.bodies)
        engine._connection = replace(engine._connection, concurrency=32)
        engine.sample(texts(12), SamplingParams())
        assert len(slow.bodies) - before <= 3


@pytest.mark.full
def test_a_server_that_answers_again_gets_calls_again(monkeypatch, caplog):
    monkeypatch.setattr(servers, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(servers, "SILENT_LOOK_SECONDS", 0.05)
    with ExitStack() as stack:
        there = stack.enter_context(chat_stub(Quick))
        port = free_port()
        engine = ServerEngine("m", [there.url, f"http://127.0.0.1:{port}/v1"], concurrency=2, max_retries=6)
        engine.sample(texts(8), SamplingParams())  # it was never there
        assert [address.is_gone for address in engine._addresses] == [False, True]
        late = stack.enter_context(chat_stub(Quick, port))
        engine.sample(texts(30), SamplingParams())
        assert len(late.bodies) >= 5
    messages = [record.getMessage() for record in caplog.records if "of pictures" not in record.getMessage()]
    assert [message.endswith("answers again") for message in messages] == [False, True]


def test_a_server_that_hangs_loses_its_calls(monkeypatch):
    """It takes connections and says nothing, as a machine does that ran out of memory."""
    monkeypatch.setattr(servers, "CONNECT_SECONDS", 0.2)
    monkeypatch.setattr(servers, "SILENT_LOOK_SECONDS", 0.05)
    with chat_stub(Quick) as there, chat_stub(Mute) as mute:
        engine = ServerEngine("m", [mute.url, there.url], concurrency=2)
        start = time.monotonic()
        outcomes = engine.sample(texts(8), SamplingParams())
        assert time.monotonic() - start < 5
        assert [outcome[0].text.rpartition(" ")[0] for outcome in outcomes] == [f"question {k}" for k in range(8)]
        assert len(there.bodies) == 8


class Mute(Handler):
    """Answers nothing."""

    def do_GET(self):
        self.server.released.wait(10)

    do_POST = do_GET


@pytest.mark.parametrize("urls", [[], ["http://a/v1", "http://a/v1"]])
def test_addresses_that_cannot_be_meant(urls):
    with pytest.raises(ValueError, match="expected one, or several different ones"):
        ServerEngine("m", urls)


def test_no_password_is_shown():
    shown = repr(ServerEngine("m", ["http://user:word@a/v1", "http://b/v1"]))
    assert shown == "ServerEngine(model='m', hosts=['a', 'b'], concurrency=32)"
