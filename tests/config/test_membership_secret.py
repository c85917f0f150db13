"""A secret is named in a configuration and never stands in one."""

from __future__ import annotations

import os

import pytest
import torch

import relaxcomm
from relaxcomm import ConfigError, config
from tests.engine.harness import on_gloo

KEY = "correct horse battery staple"


def load(secret):
    return config.load({"algorithm": "bsp", "membership": {"secret": secret}})


def test_from_the_environment(monkeypatch):
    monkeypatch.setenv("WORD", f" {KEY}\n")
    loaded = load({"env": "WORD"})
    assert loaded.membership.read_secret().holds(loaded.membership.read_secret().tag("x", b"y"), "x", b"y")
    assert KEY not in repr(loaded) + str(loaded.model_dump()) + loaded.model_dump_json()


def test_from_a_file_that_nobody_else_may_read(tmp_path, monkeypatch):
    monkeypatch.setenv("WORD", KEY)
    path = tmp_path / "the secret"
    path.write_text(f"{KEY}\n")
    path.chmod(0o600)
    from_file = load({"file": str(path)}).membership.read_secret()
    assert from_file.tag("x") == load({"env": "WORD"}).membership.read_secret().tag("x")
    path.chmod(0o640)
    with pytest.raises(
        ConfigError, match=r"others may read or write .*\(mode 640\); chmod 600 '.*the secret'"
    ) as caught:
        load({"file": str(path)}).membership.read_secret()
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("secret", [KEY, 1234567890123456, [KEY]])
def test_the_secret_itself_is_refused_and_not_shown(secret):
    with pytest.raises(ConfigError, match=r"name where it is: \{env: NAME\} or \{file: PATH\}") as caught:
        load(secret)
    assert KEY not in str(caught.value)
    assert "123456" not in str(caught.value)


@pytest.mark.parametrize("secret", [{}, {"env": "A", "file": "b"}])
def test_one_place_is_named(secret):
    with pytest.raises(ConfigError, match="just one of env and file"):
        load(secret)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (None, "variable WORD is not set on this host; it takes 16 bytes or more"),
        ("", "variable WORD is not set"),
        ("fifteen letters", "variable WORD holds 15 bytes; it takes 16 or more"),
    ],
)
def test_one_that_is_missing_or_short_is_refused(value, says, monkeypatch):
    monkeypatch.delenv("WORD", raising=False)
    if value is not None:
        monkeypatch.setenv("WORD", value)
    with pytest.raises(ConfigError, match=says) as caught:
        load({"env": "WORD"}).membership.read_secret()
    assert "letters" not in str(caught.value)


def attach_with(world, words):
    """What a rank's attach raises, with the word that it has; None for a configuration without a secret."""
    word = words[world.rank]
    os.environ.pop("WORD", None)
    if word is not None:
        os.environ["WORD"] = word
    settings = {"algorithm": "bsp", "timeout_seconds": 30}
    settings |= {"membership": {"secret": {"env": "WORD"}}} if word is not None else {}
    try:
        with world.attach(torch.nn.Linear(2, 2), None, settings):
            return "attached"
    except relaxcomm.RelaxcommError as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.ranks
def test_all_attach_with_the_same_or_nobody_does():
    assert on_gloo(attach_with, 3, [KEY] * 3) == ["attached"] * 3
    for said in on_gloo(attach_with, 3, [KEY, None, KEY]):
        assert said.startswith("ConfigError: ranks [1] have no membership.secret")
    for said in on_gloo(attach_with, 3, [KEY, KEY, KEY + "!"]):
        assert "have different membership.secrets" in said
    first, second = on_gloo(attach_with, 2, [KEY, "short"])
    assert first.startswith("ConfigError: ranks [1] have no membership.secret")
    assert "WORD holds 5 bytes" in second
    assert on_gloo(attach_with, 3, [KEY] * 3) == ["attached"] * 3
