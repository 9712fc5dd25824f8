"""Move memories between stores: by the records of an export, or from one store to the other."""
