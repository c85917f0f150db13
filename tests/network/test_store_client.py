"""What is no store keeps nobody waiting, and torch writes no page of its source about it."""

import threading
import time

import pytest

from benchmarks.ports import free_port
from relaxcomm.errors import CommunicationError, ConfigError
from relaxcomm.network import elastic_store
from relaxcomm.network.store_client import await_store
from relaxcomm.network.store_server import serve_store
from tests.faults.served import Liar


def refusal(port: int, seconds: float = 1.0) -> str:
    with pytest.raises(CommunicationError) as caught:
        await_store("127.0.0.1", port, seconds, holder="rank 0", remedy="start it")
    return str(caught.value)


def test_nobody_listens(capfd):
    port, begin = free_port(), time.monotonic()
    where = f"127.0.0.1:{port}, where rank 0 should hold the store"
    assert refusal(port) == f"nobody listens at {where} (Connection refused); start it"
    assert 0.8 < time.monotonic() - begin < 5
    assert capfd.readouterr().err == ""


def test_what_listens_says_nothing(silent_port):
    begin = time.monotonic()
    said = f"127.0.0.1:{silent_port}, where rank 0 should hold the store, is no store, or says nothing"
    assert refusal(silent_port) == f"what listens at {said}; start it"
    with pytest.raises(CommunicationError, match="is no store, or says nothing; give the HOST:PORT that"):
        elastic_store.connect(f"127.0.0.1:{silent_port}", 1.0, None)
    assert time.monotonic() - begin < 10


@pytest.mark.parametrize("address", ["http://host:1", "host", ":1", "host:0", "host:65536", "host:\u0661"])
def test_what_is_no_address_is_refused_at_once(address):
    with pytest.raises(ConfigError, match=r"^RELAXCOMM_JOIN: .* is no HOST:PORT.*; give the address"):
        elastic_store.connect(address, 60.0, None)


def test_what_listens_is_no_store(capfd):
    liar = Liar()
    liar.answer = b"HTTP/1.0 400 Bad Request\r\n\r\n"
    try:
        assert "is no store, or says nothing" in refusal(liar.port, 2.0)
    finally:
        liar.close()
    assert capfd.readouterr().err == "", "torch writes there, past Python"


def test_a_store_that_is_held_later():
    port, held = free_port(), []
    later = threading.Timer(0.5, lambda: held.append(serve_store("127.0.0.1", port)))
    later.start()
    store = await_store("127.0.0.1", port, 20.0, holder="rank 0", remedy="start it")
    later.join()
    store.set("key", "value")
    assert held[0].get("key") == b"value"


def test_a_process_without_a_terminal_connects_too(monkeypatch):
    port = free_port()
    held = serve_store("127.0.0.1", port)

    def closed(_):
        raise OSError(9, "Bad file descriptor")

    with monkeypatch.context() as patch:
        patch.setattr("relaxcomm.network.store_client.os.dup", closed)
        store = await_store("127.0.0.1", port, 20.0, holder="rank 0", remedy="start it")
    held.set("key", "value")
    assert store.get("key") == b"value"
