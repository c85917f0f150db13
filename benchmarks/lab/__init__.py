"""The slow-network lab: hosts joined by shaped links, the same job on each, by relaxcomm and by its peers."""
