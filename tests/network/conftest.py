"""What listens in the place of a store."""

import socket
import time

import pytest


@pytest.fixture
def silent_port(capfd):
    """The port of something that says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        yield silent.getsockname()[1]
    time.sleep(0.3)  # in which torch, whose connection is closed, writes of it where capfd hides it
