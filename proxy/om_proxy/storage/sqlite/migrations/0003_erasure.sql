-- What was forgotten must leave the file too, and a count is kept with what counted it.

-- Each thread that is forgotten is asked for once more; what was asked for is done once a checkpoint has emptied the WAL. A process that
-- ends between the two leaves the rest to the others, or to the next one.
CREATE TABLE erasure (
    only  INTEGER PRIMARY KEY CHECK (only = 1),
    asked INTEGER NOT NULL,
    done  INTEGER NOT NULL
) STRICT;
INSERT INTO erasure VALUES (1, 0, 0);

ALTER TABLE message ADD COLUMN encoding TEXT NOT NULL DEFAULT ''; -- of tokens, by which `tokens` was counted; empty: not known
