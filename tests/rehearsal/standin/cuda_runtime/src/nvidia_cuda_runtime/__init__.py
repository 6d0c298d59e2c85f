"""Says by its version which CUDA the release was built for; there is nothing to run."""
