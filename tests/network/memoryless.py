"""What services of tests have in common."""

from __future__ import annotations

from relaxcomm.network.transport import Service


class Memoryless(Service):
    """A service that answers nobody, and keeps nothing."""

    def answer(self, client, request):
        return []

    def leave(self, client):
        return []

    def export(self):
        return {}

    def restore(self, saved):
        pass
