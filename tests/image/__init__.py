"""The built image, run and talked to: what `scripts/image` does after the build."""
