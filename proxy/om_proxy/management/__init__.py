"""Let people and their programs read and change what is remembered.

Start with `api/route_table.py`: it has a row for each route of the admin API, with its handler.
`dashboard/` and `mcp/` use the same readers, which are the files of this folder.
"""
