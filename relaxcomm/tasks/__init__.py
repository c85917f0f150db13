"""Training jobs: what a task is, the bundled ones, and the loop that trains them."""

from relaxcomm.tasks.loading import load_task
from relaxcomm.tasks.task import Task

__all__ = ["Task", "load_task"]
