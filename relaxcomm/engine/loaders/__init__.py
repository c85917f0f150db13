"""What the engine learns from data loaders, and what it tells them."""
