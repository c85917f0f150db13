"""A host's process in the place of a worker: the last rank fails, and the others wait for it."""

import os
import subprocess
import sys
import time

if __name__ == "__main__":
    sys.stdin.readline()
    if int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
        daemon = subprocess.Popen(["sleep", "300"], stdout=subprocess.DEVNULL)
        sys.exit(f"this rank has failed and left {daemon.pid}.")
    time.sleep(300)
