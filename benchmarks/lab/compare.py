"""Two result files of the lab side by side: `python -m benchmarks.lab.compare BEFORE AFTER`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.lab.tables import Row, Table, read, tables


def lines(before: Sequence[Table], after: Sequence[Table]) -> Iterator[str]:
    """A line for each contender and place that both files have, after over before; then what one lacks."""
    earlier = {(table.place, row.label): row for table in before for row in table.rows}
    later = {(table.place, row.label): row for table in after for row in table.rows}
    for key in earlier.keys() & later.keys():
        place, label = key
        yield f"{place.title()}, {label}: {_change(earlier[key], later[key])}"
    for name, mine, other in (("before", earlier, later), ("after", later, earlier)):
        for place, label in mine.keys() - other.keys():
            yield f"{place.title()}, {label}: only {name}"


def _change(before: Row, after: Row) -> str:
    settings = "" if before.setting == after.setting else f" ({before.setting} -> {after.setting})"
    ratio = after.seconds / before.seconds
    return f"{before.seconds:.3g} s -> {after.seconds:.3g} s, {ratio:.2f} times{settings}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    arguments = parser.parse_args()
    for line in sorted(lines(tables(read(arguments.before)), tables(read(arguments.after)))):
        print(line)


if __name__ == "__main__":
    main()
