"""Trajectories of every bundled algorithm, recorded once, and compared with what the code does now."""
