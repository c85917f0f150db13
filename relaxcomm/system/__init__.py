"""What is asked of the machine: files that are written whole, and limits of time."""
