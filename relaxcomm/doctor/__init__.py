"""What an engineer asks first: the machine, its network, and the links between the workers."""
