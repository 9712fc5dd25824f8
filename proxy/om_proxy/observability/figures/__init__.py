"""Numbers that every request adds to, and the page that Prometheus reads them from."""
