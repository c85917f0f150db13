"""Training jobs: what a task is, the bundled ones, and the loop that trains them."""

from relaxcomm.tasks.task import Task
from relaxcomm.tasks.task_loader import load_task

__all__ = ["Task", "load_task"]
