"""Turn facts into log lines, figures, spans and the ledger.

Start with `facts.py`: it lists what is emitted. Each other file and folder subscribes to facts.
"""
