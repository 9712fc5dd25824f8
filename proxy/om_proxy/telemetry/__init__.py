"""What the proxy tells its operator."""
