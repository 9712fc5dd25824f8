"""What the proxy costs and how fast it is: programs that `scripts/bench` starts."""
