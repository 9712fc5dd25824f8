-- Segments of the index are merged in steps: this says that some are left. `asked` is of words that were
-- deleted since the merging began.
ALTER TABLE search_erasure ADD COLUMN merging INTEGER NOT NULL DEFAULT 0;
