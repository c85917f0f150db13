"""What an algorithm will need, told before it runs."""
