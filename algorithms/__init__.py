"""The bundled algorithms, one file each, found through entry points as a third party's are."""

RELAXCOMM_PROTOCOL = 2
