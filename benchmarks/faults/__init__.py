"""What becomes of a run in which something fails: every fault, every family of algorithms."""
