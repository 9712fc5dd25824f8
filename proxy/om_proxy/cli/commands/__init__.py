"""Run the commands: a module has those of one subject, and is imported only when one of them runs."""
