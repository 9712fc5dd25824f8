"""What people change about notes, and the memory work that they ask for."""
