"""Chat completions: requests, replies, streamed or not."""
