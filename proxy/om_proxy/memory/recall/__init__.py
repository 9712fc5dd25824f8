"""Look up earlier messages: what is asked, what is found and how it is told."""
