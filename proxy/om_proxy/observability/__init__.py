"""Turn facts into log lines, figures, spans and the ledger.

Start with `facts.py`: it lists what is emitted. Most other files subscribe to facts.
"""
