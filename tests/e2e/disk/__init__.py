"""The disk fails under the store."""
