"""What an algorithm does in one step: its plan, its transfers, and what the ranks decide together."""
