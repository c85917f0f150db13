"""Training jobs: what a task is, the bundled ones, and the loop that trains them."""

from relaxcomm.tasks.task import Task as Task
