"""The training job that `relaxcomm train` runs on every rank."""
