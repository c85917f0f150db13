"""What is trained: the only room that knows how a model, its optimizers and its wrappers are made."""
