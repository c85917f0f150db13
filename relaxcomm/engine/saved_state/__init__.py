"""What a run saves of itself on one rank, and whether something saved is such a state."""
