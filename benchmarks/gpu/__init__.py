"""What a machine with one GPU proves: the tests that need it, and how long coding takes."""
