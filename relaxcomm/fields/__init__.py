"""Field types, and how arguments are declared and checked."""
