"""The admin API: what an operator or the owner of a thread can see and change."""
