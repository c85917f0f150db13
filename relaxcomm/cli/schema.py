"""`relaxcomm schema`: the configuration as JSON Schema."""

from __future__ import annotations

import json
import sys

from relaxcomm.cli.exit_codes import readable
from relaxcomm.cli.options import Traceback
from relaxcomm.config.json_schema import make_schema


def schema(traceback: Traceback = False) -> None:
    """Print the JSON Schema of the YAML, with every algorithm and primitive that is installed.

    Write it to a file, relaxcomm.schema.json, and begin a configuration with the comment

    `# yaml-language-server: $schema=relaxcomm.schema.json`

    Then an editor with a YAML language server completes and checks it.
    """
    with readable(traceback):
        is_unicode = sys.stdout.encoding.lower().startswith("utf")
        print(json.dumps(make_schema(), indent=2, ensure_ascii=not is_unicode))
