"""YAML that is wrong, hostile or without end gets one short error, and what people write is taken."""

import pytest

from relaxcomm import ConfigError
from relaxcomm.config import load, parse_yaml

BOMB = "[" + ", ".join(["&a0 [x]", *(f"&a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12))]) + "]"
MERGED = "\n".join(
    [
        "k0: &k0 {a: 1, b: 2}",
        *(f"k{i}: &k{i} {{<<: [{', '.join([f'*k{i - 1}'] * 9)}]}}" for i in range(1, 12)),
    ]
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[" * 100_000, "line 1: lists and mappings lie more than 32 deep in each other; 32 are allowed"),
        ("a:\n" + "".join(f"{' ' * i}a:\n" for i in range(1, 90)), "line 32: lists and mappings lie more"),
        (BOMB, "a configuration holds 20,000 values at most"),
        (MERGED, "a configuration holds 20,000 values at most"),
        ("&a [*a]", "more than 32 deep"),
        ("x" * 200_000, "a text of 200,000 characters; 131,072 at most are read"),
        ("a: !!float x", "line 1: 'x' is no float; leave the tag !!float out"),
        ("a: !!bool x", "'x' is no bool"),
        ("a: !!timestamp x", "the tag 'tag:yaml.org,2002:timestamp' is not allowed; write text, a number"),
        ("a: !!python/name:os.system", "tag:yaml.org,2002:python/name:os.system"),
        ("\n{1: a}", "line 2: a key is text, got '1'; put it in quotes"),
        ("{lr: 0,7}", "got '7'; put it in quotes, or write a decimal number with a point, such as 0.5"),
        ("on: a", "a key is text, got 'on'; put it in quotes"),
        (f"{{{BOMB}: b}}", "line 1: a key is text, got a list; put it in quotes"),
        ("{{a: b}: c}", "line 1: a key is text, got a mapping; put it in quotes"),
        (f"a: !!int {BOMB}", "line 1: a list is no int; leave the tag !!int out"),
        ("9" * 5_000, "is no whole number of 64 bits"),
        ("0x" + "f" * 5_000, "is no whole number of 64 bits"),
        (str(2**63), "is no whole number of 64 bits"),
        ("0x_", "'0x_' is no whole number"),
        (".nan", "'.nan' is no number that can be held"),
        ("1e999", "'1e999' is no number that can be held; write .inf if meant"),
        (
            "a: b\n---\nc: d",
            "not YAML: line 2, column 1: but found another document; write each in a file of its own",
        ),
        (
            "a: b\n\tc: d",
            "line 2, column 1: found character '\\t' that cannot start any token; indent with spaces",
        ),
        ("a: \0", "not YAML: unacceptable character #x0000"),
        ("*" + "x" * 50_000, "found undefined alias"),
    ],
)
def test_what_is_refused(text, says):
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text)
    assert says in str(caught.value)
    assert len(str(caught.value)) < 2_000


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2026-11-23", "2026-11-23"),
        ("=", "="),
        ("[1:30, -1:30:15, 1:30.5, '1': 3]", ["1:30", "-1:30:15", "1:30.5", {"1": 3}]),
        ("!!str 1", "1"),
        ("!!int 7", 7),
        (".inf", float("inf")),
        ("-0x1f", -31),
        (str(-(2**63)), -(2**63)),
        ("", None),
        ("[" * 30 + "]" * 30, eval("[" * 30 + "]" * 30)),
    ],
)
def test_what_is_taken(text, value):
    assert parse_yaml(text) == value


def test_a_file_that_is_not_text_is_refused(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_bytes(b"algorithm: \xff")
    with pytest.raises(
        ConfigError, match=r"a\.yaml is not UTF-8: invalid start byte at byte 11; save it as UTF-8"
    ):
        load(path)
    with pytest.raises(ConfigError, match="/dev/zero has more than 524,288 bytes"):
        load("/dev/zero")
    with pytest.raises(ConfigError, match=r"cannot read the configuration .*: embedded null byte"):
        load("a\0b")


def deep(levels):
    made = "identity"
    for _ in range(levels):
        made = {"error_feedback": {"compressor": made}}
    return made


def circle():
    made = []
    made.append(made)
    return made


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"algorithm": {"rules": [{"compressor": deep(900)}]}}, "more than 32 deep"),
        ({"algorithm": circle()}, "more than 32 deep"),
        ({"algorithm": "bsp", "seed": 10**5_000}, "seed: a number of 16,610 bits is not allowed"),
        ({"algorithm": "bsp", "seed": 2**31}, "write a whole number, 0 to 2,147,483,647"),
        ({"algorithm": "bsp", "workers": 1_000_000}, "write a whole number, 1 to 4,096"),
        ({"algorithm": "bsp", "timeout_seconds": 1e300}, "31,536,000 at most"),
        ({"algorithm": "bsp", 1: 2}, "a key is text, such as 'algorithm', got 1"),
        ({"algorithm": "bsp", **{f"k{i}": 1 for i in range(900)}}, "and 892 more"),
        ({"algorithm": "x" * 100_000}, "unknown algorithm 'xxx"),
        (
            {"algorithm": {"name": "x\n", "rules": [{"payload": "gradients", "exchange": "all_reduce"}]}},
            "name = ",
        ),
    ],
)
def test_a_mapping_from_python_has_the_same_bounds(values, says):
    with pytest.raises(ConfigError) as caught:
        load(values)
    assert says in str(caught.value)
    assert len(str(caught.value)) < 2_000


def test_what_is_merged_may_have_merged_before():
    """PyYAML writes what is merged into the node itself, which another one then merges."""
    text = "base: &a {x: 1, y: 1}\nouter: {deep: {b: &b {<<: *a, x: 2}}}\nc: {<<: *b, z: 3}\n"
    assert parse_yaml(text)["c"] == {"x": 2, "y": 1, "z": 3}


@pytest.mark.parametrize("number", ["010", "-07", "00", "0_7"])
def test_a_number_that_is_octal_to_some_is_refused(number):
    with pytest.raises(ConfigError, match=r"line 1: .* is octal to some .* leave the first 0 out"):
        parse_yaml(f"workers: {number}")
    assert parse_yaml("[0, 0x1f, '010', 0.5, 1e-3]") == [0, 31, "010", 0.5, 0.001]


@pytest.mark.parametrize("text", ["", "# nothing but this\n"])
def test_an_empty_file_is_told_so(text, tmp_path):
    (tmp_path / "job.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"such as 'algorithm: bsp', got nothing"):
        load(tmp_path / "job.yaml")
