"""Ask a memory model: write the request, send it, read the answer, try again. Start with llm.py."""
