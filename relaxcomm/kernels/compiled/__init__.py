"""The kernels in Triton, each beside the function that launches it; imported when one runs."""
