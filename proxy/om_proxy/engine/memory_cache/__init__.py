"""The memories in use, and the only way to write one."""
