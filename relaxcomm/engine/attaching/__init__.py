"""What is asked before an engine begins: arguments, the model, the other ranks and their devices."""
