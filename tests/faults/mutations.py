"""Valid inputs of every kind, and strategies of what careless or hostile hands make of them."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

CONFIGURATIONS = (
    "algorithm: bsp\n",
    "algorithm: {name: local_sgd, steps: 8}\ntask: {digits: {epochs: 15}}\nworkers: 2\n",
    "algorithm: {name: selsync, threshold: 0.25, compressor: {top_k: {density: 0.01}}}\nseed: 3\n",
    "algorithm:\n  name: mine\n  rules:\n    - trigger: {every: {steps: 4}}\n      payload: deltas\n"
    "      compressor: {error_feedback: {chain: [{top_k: {density: 1e-2}}, {quantize: {bits: 8}}]}}\n"
    "      exchange: all_gather\n      outer: {nesterov: {lr: 0.7, momentum: 0.9}}\n",
    "algorithm: d_psgd\ntopology: {file: {path: sites.graphml}}\nbackend: gloo\nbucket_bytes: 1_000_000\n",
    "base: &base {steps: 4}\nalgorithm: {name: local_sgd, <<: *base}\n".replace("base: &base", "data: &base"),
    "algorithm: bsp\nphases:\n  - {after_steps: 100, algorithm: {name: local_sgd, steps: 4}}\n"
    "data: {batch_size: 32, partition: iid}\ndrift_guard: {every_steps: 50, policy: warn}\n"
    "metrics: {port: 9400, address: 127.0.0.1, run: mine, log_bytes: 1000000}\ntimeout_seconds: 60\n"
    "output: results\ndebug: false\n",
)
EDGE_LISTS = ("0 1\n1 2\n2 0\n", '# sites\n0 1 {"bandwidth": 1e8, "latency": 0.01}\n1 2 {"bandwidth": 1e7}\n')
GRAPHML = (
    '<?xml version="1.0" encoding="UTF-8"?>\n<graphml xmlns="http://graphml.graphdrawing.org/xmlns">\n'
    '<key id="d0" for="edge" attr.name="bandwidth" attr.type="double"/>\n<graph edgedefault="undirected">\n'
    '<node id="n0"/><node id="n1"/><node id="n2"/>\n<edge source="n0" target="n1"><data key="d0">1e8</data>'
    '</edge>\n<edge source="n1" target="n2"/>\n</graph></graphml>\n',
)
REQUESTS = (
    "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:9400\r\nAccept: text/plain\r\n\r\n",
    "GET /sd HTTP/1.1\r\nHost: localhost:9400\r\n\r\n",
    "GET /metrics?name[]=relaxcomm_steps_total HTTP/1.1\r\nHost: [::1]:9400\r\nAccept-Encoding: gzip\r\n\r\n",
)
DISCOVERED = ('[{"targets": ["127.0.0.1:9400"], "labels": {"rank": "0", "run": "mine"}}]',)
SHOWN = (
    '# TYPE relaxcomm_info gauge\nrelaxcomm_info{rank="0",run="mine",algorithm="bsp",world_size="2"} 1.0\n'
    '# TYPE relaxcomm_steps counter\nrelaxcomm_steps_total{outcome="local",rank="0"} 12.0\n'
    "# TYPE relaxcomm_step_seconds histogram\nrelaxcomm_step_seconds_bucket{le="
    '"+Inf"} 12.0\nrelaxcomm_step_seconds_count 12.0\nrelaxcomm_step_seconds_sum 1.5\n'
    "# TYPE relaxcomm_loss gauge\nrelaxcomm_loss 0.5\n"
    '# TYPE relaxcomm_evaluation gauge\nrelaxcomm_evaluation{metric="accuracy"} 0.9\n',
)
LAUNCH = {
    "RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}

_BOMB = (
    "[" + ", ".join(["&a0 [x]", *(f"&a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12))]) + "]"
)
_ENTITIES = "".join(f'<!ENTITY e{i} "{f"&e{i - 1};" * 10}">' for i in range(1, 9))
_TEXTS = (
    *("", " ", "~", "-1", "0", "1.5", "1e999", ".nan", "-.inf", "nan", "inf", "true", "x", "9" * 30),
    *("9" * 5_000, "0x" + "f" * 5_000, "x" * 100_000, "\0", "\x85", "\ufeff", "\x1b[2J", "é", "٣", "3_0"),
    *("{", "}", "[", "]", "<", ">", "&", "'", '"', "\\", "%", "\n", "\r\n", "\t", ": ", ", ", "#", "=", "*x"),
)
_YAML = (
    *(
        "!!float x",
        "!!int x",
        "!!bool x",
        "!!null x",
        "!!binary x",
        "!!timestamp x",
        "!!set {a}",
        "!!omap [a]",
    ),
    *(
        "!mine x",
        "!!python/object/apply:os.getpid []",
        "!!python/name:os.system x",
        "2026-11-23",
        "2026-13-45",
    ),
    *(
        "1:30",
        "0o17",
        "017",
        "yes",
        "<<",
        "{a: 1, a: 2}",
        "{1: a, '1': b}",
        "{[a]: b}",
        "? [a]\n: b",
        "{<<: 3}",
    ),
    *("&a [*a]", "&a {b: *a}", "[" * 3_000, "{a: " * 800, "\n" + "- " * 900, _BOMB, "--- x\n--- y", "|\n x"),
    *(
        "[" + "1, " * 20_000 + "1]",
        "{" + ", ".join(f"k{i}: 1" for i in range(3_000)) + "}",
        "[[1]]",
        "{x: {}}",
    ),
    *(
        "null",
        "[]",
        "{}",
        "{name: bsp}",
        "{rules: []}",
        "{top_k: {density: .nan}}",
        "{file: {path: /dev/zero}}",
    ),
)
_XML = (
    f'<!DOCTYPE graphml [<!ENTITY e0 "{"x" * 100}">{_ENTITIES}]>',
    '<!DOCTYPE graphml [<!ENTITY e8 SYSTEM "file:///etc/passwd">]>',
    *(
        "&e8;",
        "&#0;",
        "<node/>",
        '<node id="n0"/>',
        '<edge source="n0" target="n0"/>',
        "<graph/>",
        "</graph>",
    ),
    *(
        "<edge/>",
        '<edge source="n0" target="n7"/>',
        '<edge source="n0" target="n1"/>',
        "<a>" * 5_000,
        "<![CDATA[",
    ),
    *(
        '<data key="d0">nan</data>',
        '<data key="d0">-1</data>',
        '<data key="d9">1</data>',
        "<hyperedge/>",
        "<port/>",
    ),
)
_GRAPH_LINES = (
    *(
        "0 0\n",
        "0\n",
        "0 1 2\n",
        "a b\n",
        "-1 0\n",
        '0 1 {"weight": -1}\n',
        '0 1 {"weight": 1e999}\n',
        "1 0\n",
    ),
    *(
        '0 1 {"bandwidth": "x"}\n',
        "0 1 " + "[" * 5_000 + "\n",
        "0 1 " + "-" * 50_000 + "1\n",
        "7 8\n",
        "0 1 {1}\n",
    ),
)
_HTTP = (
    *(
        "POST",
        "get",
        "HTTP/9.9",
        "HTTP/x",
        "/",
        "//",
        "/%00",
        "/metrics?" + "a=b&" * 2_000,
        "*",
        "http://x/sd",
    ),
    *(
        "X: " + "y" * 70_000 + "\r\n",
        "X: y\r\n" * 200,
        "Content-Length: -1\r\n",
        "Content-Length: x\r\n",
        "\r\n\r\n",
    ),
    *(
        "Host: a b\r\n",
        "Host: \xff\r\n",
        "Accept: " + "a/b;q=x," * 500 + "\r\n",
        "Transfer-Encoding: chunked\r\n",
    ),
    *("/sd", "/metrics?name[]=" + "%ff" * 20, "Expect: 100-continue\r\n", " ", "Accept: ;;;\r\n"),
)
_JSON = (
    *(
        "[" * 20_000,
        "{}",
        "null",
        "1",
        '"x"',
        "NaN",
        "1e999",
        '["127.0.0.1:9400"]',
        '"rank": "x"',
        '"rank": 1e999',
    ),
    *('"user:secret@127.0.0.1:1"', '"file:///etc/passwd"', '"[::1"', '"\\ud800"', '"rank": "-1"', "[]", "{"),
)
_METRICS = (
    *(
        "NaN",
        "+Inf",
        "-Inf",
        "1e308",
        "-1e308",
        '{metric="',
        'le="x"',
        "relaxcomm_evaluation 1\n",
        "# TYPE",
        "# HELP",
    ),
    *(
        "relaxcomm_steps_total NaN\n",
        "relaxcomm_steps_total +Inf\n",
        'a{b="\\',
        "relaxcomm_loss 1 2 3 4\n",
        "{}",
    ),
    *(
        "relaxcomm_bytes_sent_total -1e308\n",
        "relaxcomm_loss 1e308\n",
        'relaxcomm_info{run="\x1b]0;x\x07"} 1\n',
    ),
)


_CHANGES = (*("replace",) * 5, *("insert",) * 3, "delete", "repeat", "any", "cut")


def _replace(text: str, start: int, end: int, put: str) -> str:
    return text[:start] + put + text[end:]


def _nested() -> list[Any]:
    """A list too deep to be walked."""
    deep: list[Any] = []
    for _ in range(5_000):
        deep = [deep]
    return deep


def _circle() -> list[Any]:
    """A list that holds itself."""
    one: list[Any] = []
    one.append(one)
    return one


VALUES: Mapping[str, Callable[[], Any]] = {
    **{
        repr(one): (lambda one=one: one)
        for one in (None, True, -1, 0, 1, 2**64, 1.5, "", "x", "\0", "\ud800", b"x")
    },
    **{
        repr(one): (lambda one=one: one)
        for one in ({1, 2}, [], {}, [[]], {"a": {}}, {1: 2, "1": 3}, {None: 1}, int)
    },
    **{
        "nan": lambda: float("nan"),
        "inf": lambda: float("inf"),
        "object": object,
        "list": lambda: [1] * 50_000,
    },
    **{"huge": lambda: 10**5_000, "long": lambda: "x" * 100_000, "date": lambda: datetime.date(2026, 11, 23)},
    **{"nested": _nested, "circle": _circle, "wide": lambda: {f"k{i}": 1 for i in range(3_000)}},
}
"""What Python programs may put where a value belongs, by name."""


@st.composite
def _mutant(draw: Callable[..., Any], sources: Sequence[str], nasty: Sequence[str]) -> str:
    """One of the sources, after one to three changes at the borders of its words."""
    text: str = draw(st.sampled_from(sources))
    for _ in range(draw(st.integers(1, 3))):
        words = [match.span() for match in re.finditer(r"[\w.]+|\S|\s+", text[:5_000])] or [(0, 0)]
        start, end = draw(st.sampled_from(words))
        change = draw(st.sampled_from(_CHANGES))
        if change in ("replace", "insert"):
            text = _replace(text, start, end if change == "replace" else start, draw(st.sampled_from(nasty)))
        elif change == "any":
            text = _replace(text, start, end, draw(st.text(max_size=8)))
        elif change == "repeat":
            text = _replace(text, start, start, text[start : start + draw(st.integers(1, 80))])
        else:
            text = text[:start] + ("" if change == "cut" else text[end:])
    return text


def _written(texts: st.SearchStrategy[str]) -> st.SearchStrategy[bytes]:
    """The bytes of a file: mostly UTF-8, seldom another encoding, or with one byte that is none of it."""
    return st.builds(_encoded, texts, st.integers(0, 9), st.integers(0, 500))


def _encoded(text: str, how: int, place: int) -> bytes:
    if how == 9:
        return text.encode("utf-16", "surrogatepass")
    data = text.encode("utf-8", "surrogatepass")
    return data[:place] + b"\xff" + data[place:] if how == 8 else data


yaml_texts = _mutant(CONFIGURATIONS, (*_TEXTS, *_YAML))
yaml_files = _written(yaml_texts)
graphml_files = _written(_mutant(GRAPHML, (*_TEXTS, *_XML)))
edge_list_files = _written(_mutant(EDGE_LISTS, (*_TEXTS, *_GRAPH_LINES)))
requests = _written(_mutant(REQUESTS, (*_TEXTS, *_HTTP)))
discovered = _written(_mutant(DISCOVERED, (*_TEXTS, *_JSON)))
shown = _written(_mutant(SHOWN, (*_TEXTS, *_METRICS)))
assignments = st.builds(
    lambda key, value: f"{key}={value}",
    st.sampled_from(
        ("seed", "algorithm", "algorithm.steps", "data.batch_size", "topology", "metrics.port", "task")
    )
    | _mutant(("data.batch_size", "algorithm.name.x"), (*_TEXTS, ".", "..")),
    st.sampled_from((*_TEXTS, *_YAML)) | _mutant(("{name: local_sgd, steps: 8}", "64"), (*_TEXTS, *_YAML)),
)
_ANSWERS = tuple(
    f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    for body in (*DISCOVERED, *SHOWN)
)
answers = _written(_mutant(_ANSWERS, (*_TEXTS, *_HTTP, "302", "Location: file:///etc/passwd\r\n")))
urls = _mutant(
    ("http://127.0.0.1:1", "127.0.0.1:1/metrics"), (*_TEXTS, "file://", "user:secret@", "[::1", "::")
)
task_names = _mutant(
    ("relaxcomm.tasks.digits:make", "digits", "tests.models:make"), (*_TEXTS, "..", ":", "os", "/")
)
_KEYS = (
    *(
        "algorithm",
        "phases",
        "topology",
        "task",
        "workers",
        "backend",
        "seed",
        "bucket_bytes",
        "data",
        "metrics",
    ),
    *("drift_guard", "timeout_seconds", "output", "debug", "x", "x" * 100_000),
)
mappings = st.tuples(st.sampled_from(_KEYS), st.sampled_from(sorted(VALUES)))
"""A key of a configuration and the name of a value."""
environments = st.dictionaries(
    st.sampled_from(sorted(LAUNCH)),
    st.none()
    | st.sampled_from([one for one in _TEXTS if "\0" not in one])
    | st.sampled_from(("1", "2", "65536")),
    min_size=1,
    max_size=3,
)
"""Changes to `LAUNCH`; None takes a variable away."""


def _failing(error: BaseException) -> Callable[[], Any]:
    def build() -> Any:
        raise error

    return build


def _unknown_hint(a: NoSuchType) -> None:  # type: ignore[name-defined]  # noqa: F821  # that is the point
    """What a type checker would refuse."""


TARGETS: Mapping[str, object] = {
    **{"none": None, "number": 3, "text": "x", "object": object(), "three": lambda: 3, "hint": _unknown_hint},
    **{
        "len": len,
        "dict": dict,
        "type": type,
        "error": _failing(KeyError("x")),
        "exit": _failing(SystemExit(3)),
    },
}
"""What an entry point may name, by name."""

entry_points = st.tuples(
    st.sampled_from(("bsp", "mine", "", "a\nb", "x" * 5_000, "../x")),
    st.sampled_from(
        ("foreign:thing", "foreign:thing[extra]", "foreign:thing.x", "foreign", "foreign:no", "nosuch:x")
    )
    | st.sampled_from(("", ":", "a b", "..:x", "os:abort:x", "x" * 5_000)),
    st.sampled_from(sorted(TARGETS)),
    st.just(1) | st.sampled_from((None, 0, 2, "1", 1.5, float("nan"), (), True, "x" * 5_000)),
)
"""Name and place of an entry point, the name of what is there, and the protocol of its package."""
