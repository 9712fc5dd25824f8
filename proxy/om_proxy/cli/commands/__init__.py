"""Run one command each: a module is imported only when its command runs."""
