"""Clients of an exporter that are wrong, slow, or too many."""

import json
import socket
import time
from contextlib import ExitStack

import pytest

from relaxcomm.monitoring import exporter as module
from tests.faults.served import ask, exporter

GOOD = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def port():
    with exporter() as made:
        yield made.port


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (b"POST /metrics HTTP/1.1\r\nHost: a\r\n\r\n", b"405 Method Not Allowed"),
        (b"GET /sd HTTP/1.1\r\n\r\n", b"400 Bad Request"),
        (b"GET /sd HTTP/1.1\r\nHost: a/b@c\r\n\r\n", b"400 Bad Request"),
        (b"GET /etc/passwd HTTP/1.1\r\nHost: a\r\n\r\n", b"404 Not Found"),
        (b"GET " + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n", b""),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", b""),
    ],
)
def test_what_is_refused(port, request_, says, capfd):
    assert says in ask(port, request_)
    assert b"relaxcomm_loss 0.5" in ask(port, GOOD)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("host", ["node-0", "node-0:9400", "[::1]", "[::1]:9400"])
def test_ranks_of_this_host_are_where_it_was_asked(port, host):
    body = ask(port, f"GET /sd HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()).partition(b"\r\n\r\n")[2]
    name = host.removesuffix(":9400")
    assert json.loads(body)[0]["targets"] == [f"{name}:{port}"]


def test_of_a_head_without_end_little_is_kept(port):
    head = b"GET /metrics HTTP/1.1\r\n" + b"".join(b"X-%d: %s\r\n" % (i, b"y" * 6_000) for i in range(90))
    assert len(ask(port, head)) < 100_000
    with open("/dev/zero", "rb") as zeros:
        lines = module._Head(zeros)
        assert sum(len(lines.readline(65_537)) for _ in range(10)) == module._LONGEST_HEAD_BYTES


def test_slow_clients_are_hung_up_on_and_do_not_keep_others_out(port, monkeypatch):
    monkeypatch.setattr(module, "_SLOWEST_CLIENT_SECONDS", 1.0)
    with ExitStack() as stack:
        slow = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
            for _ in range(2 * module._MOST_CLIENTS)
        ]
        for one in slow[: module._MOST_CLIENTS]:
            one.sendall(b"GET /met")
        deadline = time.monotonic() + 15
        while b"relaxcomm_loss" not in _said(port):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        for one in slow:
            try:
                while one.recv(4096):
                    pass
            except ConnectionError:
                pass


def _said(port):
    try:
        return ask(port, GOOD)
    except OSError:
        return b""
