"""From one algorithm to another: when, and what goes along."""
