"""Several servers share the calls of one engine: real ones of which one is killed, a slow one, and some that hang."""

import json
import os
import re
import signal
import socket
import threading
import time
from contextlib import contextmanager

import pytest
from chat_stub import Handler, chat_stub
from loopback import wait_for
from processes import begin, free_port

from trl_mmreason.generation import Request, SamplingParams, derive_seed, servers
from trl_mmreason.generation.server_engine import ServerEngine, ServerError
from trl_mmreason.jobs.run import Summary, run
from trl_mmreason.jobs.store import Store

SAMPLING_PARAMS = SamplingParams(max_new_tokens=8)
ROWS = [{"id": f"row-{k}", "prompt": [{"role": "user", "content": f"question {k}"}]} for k in range(40)]


class Slow(Handler):
    """Takes a quarter of a second for each call."""

    seconds = 0.25

    def answer(self, body):
        time.sleep(self.seconds)
        super().answer(body)


class Quick(Slow):
    """Takes a twentieth of a second for each call."""

    seconds = 0.05


class Mute(Handler):
    """Answers nothing."""

    def do_GET(self):
        self.server.released.wait(10)

    do_POST = do_GET


def answers(port):
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def serve(port):
    with chat_stub(Quick, port) as server:
        server.released.wait()


@contextmanager
def real_servers(count):
    """So many servers in processes of their own; gives process and address of each."""
    ports = [free_port() for _ in range(count)]
    processes, urls = [begin(serve, port) for port in ports], [f"http://127.0.0.1:{port}/v1" for port in ports]
    try:
        for port in ports:
            wait_for(lambda port=port: answers(port))
        yield list(zip(processes, urls, strict=True))
    finally:
        for process in processes:
            process.kill()
            process.join()


def work_of(engine, log):
    def work(units):
        log.extend((row["id"], index) for row, index in units)
        asked = [Request(row["prompt"], seed=derive_seed(row["id"], index)) for row, index in units]
        return [{"text": samples[0].text} for samples in engine.sample(asked, SAMPLING_PARAMS)]

    return work


def texts(count):
    return [Request([{"role": "user", "content": f"question {k}"}], seed=k) for k in range(count)]


def warnings_of(caplog):
    messages = [record.getMessage() for record in caplog.records if record.name == servers.logger.name]
    return [message for message in messages if "placeholders of images" not in message]


@pytest.mark.full
def test_one_of_three_servers_is_killed_and_nothing_is_lost_or_asked_twice(tmp_path, caplog):
    with real_servers(3) as started:
        (_, first), (_, second), (third_process, third) = started
        alone = ServerEngine("m", second)
        run(whole := Store(tmp_path / "whole"), "answers", ROWS, work_of(alone, []), settings=alone.settings, n=2)
        engine = ServerEngine("m", [first, second, third], concurrency=2, max_retries=1)
        assert engine.settings == alone.settings  # a store may be resumed with other addresses

        log, broken = [], Store(tmp_path / "broken")

        def kill():
            while len(log) < 40:  # the second batch is in flight
                time.sleep(0.001)
            time.sleep(0.05)
            os.kill(third_process.pid, signal.SIGKILL)

        killing = threading.Thread(target=kill, daemon=True)
        killing.start()
        options = {"settings": engine.settings, "n": 2, "batch_size": 20, "retries": 0}
        summary = run(broken, "answers", ROWS, work_of(engine, log), **options)
        killing.join()
        assert summary == Summary(80, 80, 0, 0, 0)
        assert sorted(log) == sorted((row["id"], index) for row in ROWS for index in range(2))  # each was asked once
        assert list(broken.records("answers")) == list(whole.records("answers"))
        [warning] = warnings_of(caplog)  # it is left out without another word
        told = rf"Nothing answers at {third} \(ConnectError\): it is left out, and its calls go to the 2 other server"
        assert re.match(told, warning)

        for process, _ in started:
            process.kill()
            process.join()
        engine = ServerEngine("m", [first, second, third], concurrency=2, max_retries=0)
        with pytest.raises(ServerError, match=r"^Nothing answers at http://127.0.0.1:\d+/v1 \(ConnectError\)\. Start"):
            engine.sample(texts(4), SAMPLING_PARAMS)


@pytest.mark.full
def test_a_slow_server_gets_fewer_calls_and_all_servers_get_the_same_calls():
    with chat_stub(Slow) as slow, chat_stub(Quick) as quick, chat_stub() as one:
        ServerEngine("m", one.url).sample(texts(60), SamplingParams())
        ServerEngine("m", [slow.url, quick.url], concurrency=2).sample(texts(60), SamplingParams())
        assert len(slow.bodies) + len(quick.bodies) == 60  # each was asked once
        assert 8 <= len(slow.bodies) <= 20  # 5 times slower: a sixth of 60, and what it begins with
        assert slow.peak == quick.peak == 2
        assert sorted(map(json.dumps, slow.bodies + quick.bodies)) == sorted(map(json.dumps, one.bodies))


def test_a_server_that_hangs_loses_its_calls(monkeypatch, caplog):
    """It takes connections and says nothing, as a machine does that ran out of memory."""
    monkeypatch.setattr("trl_mmreason.generation.servers.CONNECT_SECONDS", 0.1)
    with chat_stub(Quick) as there, chat_stub(Mute) as mute:
        settings = {"concurrency": 2, "timeout_seconds": 0.5, "max_retries": 0, "suppressed_ids": ()}
        engine = ServerEngine("m", [mute.url, there.url], **settings)
        outcomes = engine.sample(texts(8), SamplingParams())
        assert [outcome[0].text.rpartition(" ")[0] for outcome in outcomes] == [f"question {k}" for k in range(8)]
        assert len(there.bodies) == 8
        engine.sample(texts(8), SamplingParams())
    assert len(warnings_of(caplog)) == 1


@pytest.mark.parametrize("urls", [[], ["http://a/v1", "http://a/v1"]])
def test_addresses_that_cannot_be_meant(urls):
    with pytest.raises(ValueError, match="expected one, or several different ones"):
        ServerEngine("m", urls)


def test_no_password_is_shown():
    shown = repr(ServerEngine("m", ["http://user:word@a/v1", "http://b/v1"]))
    assert shown == "ServerEngine(model='m', hosts=['a', 'b'], concurrency=32)"
