"""The store of a job listens at one address, as long as the others can reach it there."""

import os
import socket

import pytest
import torch.distributed as dist

from benchmarks.ports import free_port
from relaxcomm.errors import CommunicationError, ConfigError
from relaxcomm.network import default_group

PLACE = {"RANK": "0", "MASTER_ADDR": "node-0", "MASTER_PORT": "29500"}
SEVERAL_HOSTS = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
ONE_HOST = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("host", "address", "sizes", "serves"),
    [
        ("node-0", "127.0.1.1", SEVERAL_HOSTS, False),
        ("node-0", "127.0.1.1", ONE_HOST, True),
        ("node-0", "10.0.0.3", SEVERAL_HOSTS, True),
        ("127.0.0.1", "127.0.0.1", SEVERAL_HOSTS, True),
        ("localhost", "127.0.0.1", SEVERAL_HOSTS, True),
    ],
)
def test_a_name_that_only_its_own_host_takes_for_loopback(monkeypatch, host, address, sizes, serves):
    monkeypatch.setattr(os, "environ", PLACE | {"MASTER_ADDR": host} | sizes)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [(None, None, None, None, (address, 0))])
    monkeypatch.setattr(default_group, "_served", served := [])
    monkeypatch.setattr(default_group, "serve_store", lambda *place: place)
    default_group._find_store(1.0)
    assert served == ([(host, 29500)] if serves else [])


@pytest.mark.parametrize(("address", "listens_at"), [("127.0.1.1", "10.0.0.3"), ("10.0.0.7", "10.0.0.7")])
def test_gloo_listens_where_other_hosts_reach_a_name_that_is_loopback_at_home(
    monkeypatch, address, listens_at
):
    """It took the loopback, where the others were refused."""
    monkeypatch.setattr(os, "environ", PLACE | SEVERAL_HOSTS)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [(None, None, None, None, (address, 0))])
    monkeypatch.setattr(default_group, "address_towards", lambda host: address)
    monkeypatch.setattr(default_group, "_met", [(dist.HashStore(), 0, 2)])
    monkeypatch.setattr(default_group, "use_interface_of", (used := []).append)

    def agree(place):
        dist.PrefixStore(place.name, place.store).set("master/1", "10.0.0.3")

    def make(*_, **settings):
        raise ConfigError("as far as this")

    monkeypatch.setattr(default_group, "agree", agree)
    monkeypatch.setattr(dist, "init_process_group", make)
    with pytest.raises(ConfigError, match="as far as this"):
        default_group.make_default_group(1.0)
    assert used == [listens_at]


@pytest.mark.parametrize(
    ("variables", "elastic", "launched"),
    [
        ({}, True, False),
        (PLACE | {"WORLD_SIZE": "1"}, False, False),
        (PLACE | {"WORLD_SIZE": "1"}, True, True),
        (PLACE | ONE_HOST, False, True),
        ({"RANK": "0", "WORLD_SIZE": "1"}, True, False),
    ],
)
def test_one_rank_of_a_launcher_makes_a_group_where_others_may_join(
    monkeypatch, variables, elastic, launched
):
    monkeypatch.setattr(os, "environ", variables)
    assert default_group.is_launched(elastic=elastic) == launched


def refused(monkeypatch, port, **variables):
    """What a rank says that cannot meet the others."""
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **variables}
    monkeypatch.setattr(os, "environ", place)
    monkeypatch.setattr(default_group, "_met", [])
    with pytest.raises(CommunicationError) as caught:
        default_group.make_default_group(1.0)
    return str(caught.value)


def test_rank_0_is_missing(monkeypatch):
    said = refused(monkeypatch, port := free_port(), RANK="1")
    assert "rank 1 of 2 has not met the others within 1 s (timeout_seconds): nobody listens at" in said
    assert f"127.0.0.1:{port}, where rank 0 should hold the store (Connection refused)" in said


def test_a_name_that_no_host_can_have(monkeypatch):
    said = refused(monkeypatch, free_port(), RANK="0", MASTER_ADDR="node..0")
    assert "rank 0 of 2 has not met the others within 1 s (timeout_seconds): encoding with 'idna'" in said


def test_a_launcher_that_holds_the_store_is_missing(monkeypatch):
    said = refused(monkeypatch, free_port(), RANK="0", TORCHELASTIC_USE_AGENT_STORE="True")
    assert "where the launcher should hold the store (Connection refused)" in said


def test_something_silent_is_in_the_place_of_the_store(monkeypatch, silent_port):
    said = refused(monkeypatch, silent_port, RANK="1")
    assert "is no store, or says nothing; start it, with the address of its host as MASTER_ADDR" in said


def test_the_port_is_taken_at_rank_0(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as other:
        said = refused(monkeypatch, port := other.getsockname()[1], RANK="0")
    assert said.startswith(f"rank 0 cannot hold the store: port {port} (MASTER_PORT) is taken on this host;")
