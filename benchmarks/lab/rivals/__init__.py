"""What relaxcomm is compared with, each used as its documentation says."""
