"""Start the processes of a server: one, or several workers on one port."""
