"""Useful samples a second while workers are killed, for relaxcomm and its peers, in turn."""
