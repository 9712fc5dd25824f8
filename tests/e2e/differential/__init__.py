"""The same chats with and without the proxy."""
