"""Tests of reading histories, and of playing them."""
