"""Rules and algorithms, and which of them can work."""
