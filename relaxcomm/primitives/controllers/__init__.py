"""Controllers: what is learnt from a rule's exchanges becomes a named value."""
