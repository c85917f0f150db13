"""What `relaxcomm top` reads from a server that it does not control."""

import json
import socket
import threading
import time

import pytest

from relaxcomm import ConfigError
from relaxcomm.cli.ranks_view import History, sparkline
from relaxcomm.monitoring import scraping
from relaxcomm.monitoring.scraping import Reader, parse
from tests.faults.served import Liar


@pytest.fixture
def liar():
    made = Liar()
    yield made
    made.close()


def answered(body, head="HTTP/1.1 200 OK"):
    return f"{head}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("localhost", "http://localhost:9400"),
        ("http://node-0/metrics", "http://node-0:9400"),
        ("[::1]", "http://[::1]:9400"),
        ("node-0:80", "http://node-0:80"),
        ("https://metrics.site.org", "https://metrics.site.org"),
    ],
)
def test_without_a_port_it_is_the_usual_one(url, asked):
    assert Reader(url).url == asked


def test_where_to_look():
    for url in ("node-0:9400", "http://node-0:9400/metrics", "HOST:1", "https://[::1]:9400/"):
        assert Reader(url).url.endswith(url.partition("://")[2].partition("/")[0] or url)
    for url in (
        "http://me:secret@node-0:9400",
        "file:///etc/passwd",
        "ftp://a",
        "",
        "a b",
        "[::1",
        "a:99999",
        "9401",
    ):
        with pytest.raises(ConfigError, match="is not where a job shows its metrics; write HOST:PORT, wi"):
            Reader(url)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (answered("[" * 50_000), "no list of ranks"),
        (answered("{}" + " " * 5_000_000), "an answer of more than 4,194,304 bytes"),
        (answered("7"), "no list of ranks"),
        (
            answered('[{"targets": ["me:secret@a:1"], "labels": {"rank": "0"}}]'),
            "rank '0' at 'me:secret@a:1' cann",
        ),
        (answered('[{"targets": ["a:1/x"], "labels": {"rank": "0"}}]'), "cannot be"),
        (answered('[{"targets": ["a:1"], "labels": {"rank": "-1"}}]'), "rank '-1' at 'a:1' cannot be"),
        (answered("", "HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd"), "HTTP status 302"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n[", "the answer is cut off"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "no HTTP: BadStatusLine"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000, "no HTTP: LineTooLong"),
    ],
)
def test_what_is_no_answer(liar, answer, says):
    liar.answer = answer
    with pytest.raises((ValueError, OSError), match=says):
        Reader(f"127.0.0.1:{liar.port}").ranks()


def test_no_more_ranks_are_asked_than_a_job_may_have():
    listed = [{"targets": [f"a:{i % 9 + 1}"], "labels": {"rank": str(i)}} for i in range(12_000)]
    assert len(scraping._addresses(json.dumps(listed))) == 10_000


def test_an_answer_that_trickles_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(scraping, "_ANSWER_SECONDS", 0.5)
    server = socket.create_server(("127.0.0.1", 0))

    def trickle():
        connection, _ = server.accept()
        with connection:
            try:
                while True:
                    connection.sendall(b"H")
                    time.sleep(0.05)
            except OSError:
                return

    thread = threading.Thread(target=trickle)
    thread.start()
    began = time.monotonic()
    with pytest.raises((ValueError, OSError)):
        Reader(f"127.0.0.1:{server.getsockname()[1]}").ranks()
    assert time.monotonic() - began < 5
    thread.join()
    server.close()


def test_what_is_drawn_is_finite_and_printable():
    text = (
        'relaxcomm_info{run="\x1b]0;title\x07mine",algorithm="bsp"} 1.0\n'
        'relaxcomm_evaluation{metric="\x1b[2Jacc"} 1\nrelaxcomm_evaluation 3\n'
        "relaxcomm_steps_total +Inf\nrelaxcomm_bytes_sent_total NaN\nrelaxcomm_loss NaN\n"
    )
    reading = parse(0, text, 1.0)
    assert reading.facts["run"] == "]0;titlemine"
    assert list(reading.evaluations) == ["[2Jacc"]
    assert "steps" not in reading.values
    rows = History().rows([0], {0: reading})
    assert rows[0].steps == 0
    assert sparkline([-1.7e308, 1.7e308]) == "▁▁"
    for text in 'a{b="\\', "relaxcomm_steps_total " + "9" * 400:
        with pytest.raises(ValueError, match="no metrics: "):
            parse(0, text, 1.0)


def test_a_value_is_no_counter_whatever_it_is_called():
    shown = {"loss": 2.0, "loss_total": 9.0}
    lines = (f"# TYPE relaxcomm_{name} gauge\nrelaxcomm_{name} {value}\n" for name, value in shown.items())
    assert parse(0, "".join(lines), 1.0).values == shown


def test_metrics_of_the_program_itself_are_no_part_of_the_job():
    own = (
        "# TYPE loss gauge\nloss 1000\n# TYPE steps counter\nsteps_total 500\n"
        'info{run="mine"} 1\nevaluation{metric="mine"} 1\n'
    )
    reading = parse(0, f"{own}relaxcomm_steps_total 3\nrelaxcomm_loss 0.5\n{own}", 1.0)
    assert reading.values == {"steps": 3.0, "loss": 0.5}
    assert (reading.facts, reading.evaluations) == ({}, {})


def test_no_password_goes_anywhere(monkeypatch, tmp_path):
    """Neither to the address that was named nor to one that `/sd` names, whatever lies about here."""
    (tmp_path / ".netrc").write_text("default login me password secret\n")
    for name, value in (("HOME", str(tmp_path)), ("NETRC", str(tmp_path / ".netrc"))):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("http_proxy", "http://me:secret@127.0.0.1:9")
    named, other = Liar(), Liar()
    listed = [{"targets": [f"127.0.0.1:{other.port}"], "labels": {"rank": "0"}}]
    named.answer, other.answer = answered(json.dumps(listed)), answered("relaxcomm_loss 1.0\n")
    with pytest.raises(ConfigError):
        Reader(f"http://me:secret@127.0.0.1:{named.port}")
    reader = Reader(f"http://127.0.0.1:{named.port}")
    assert list(reader.read(reader.ranks(), 0.0)) == [0]
    assert [one.asked.count(b"GET /") for one in (named, other)] == [1, 1]
    for one in (named, other):
        one.close()
        said = one.asked.lower()
        assert b"authorization" not in said
        assert b"cookie" not in said
        assert b"secret" not in said
