"""What makes the generated pages of docs/."""
