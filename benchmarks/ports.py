"""Ports for the processes of one measurement or test."""

import random
import socket
from contextlib import ExitStack


def free_port(in_a_row: int = 1) -> int:
    """The first of so many ports in a row on which nobody listens.

    They lie below those that the system gives to connections, since another program could be given such a one
    before its user listens on it.
    """
    while True:
        first = random.SystemRandom().randrange(12_000, 29_000)  # whatever seed a test has set
        with ExitStack() as stack:
            try:
                for port in range(first, first + in_a_row):
                    probe = stack.enter_context(socket.socket())
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
