"""In which order flights of one window are issued and waited for."""

from __future__ import annotations

import pytest

from relaxcomm.step.flight import Pipeline


class Flying:
    """Writes down what is asked of it."""

    def __init__(self, name, log, operations):
        self.name, self.log, self.operations = name, log, operations

    @property
    def has_more_to_issue(self):
        return self.operations > 1

    def launch(self):
        self.log.append(self.name)

    def advance(self):
        self.operations -= 1
        self.log.append(f"{self.name} goes on")

    def land(self):
        self.log.append(f"{self.name} lands")


@pytest.mark.parametrize(
    ("operations", "most_bytes", "expected"),
    [
        (1, 8, ["a", "b", "a lands", "c", "b lands", "d"]),
        (2, 100, ["a", "b", "a goes on", "c", "b goes on", "d", "c goes on"]),
        (1, 100, ["a", "b", "c", "d"]),
    ],
    ids=[
        "the oldest lands where all are too large",
        "the one before goes on",
        "a last operation is left alone",
    ],
)
def test_what_a_launch_waits_for(operations, most_bytes, expected):
    log = []
    pipeline = Pipeline(most_bytes)
    for name in "abcd":
        pipeline.launch(Flying(name, log, operations), 4)
    assert log == expected
