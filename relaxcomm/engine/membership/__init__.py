"""Ranks come and go: who goes on, in a world of their own, with which state."""
