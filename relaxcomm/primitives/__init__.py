"""The bundled primitives, one file a role."""
