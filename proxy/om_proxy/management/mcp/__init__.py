"""The route `/om/mcp`: other agents read memory by the Model Context Protocol."""
