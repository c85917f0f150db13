"""Training jobs: what a task is, how one is found, and the bundled ones."""

from relaxcomm.tasks.task import Task as Task
