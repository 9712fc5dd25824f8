-- What several processes on one database need, also of different releases.

-- 1: the work that is due needs a credential that only a request brings
ALTER TABLE thread ADD COLUMN needs_caller INTEGER NOT NULL DEFAULT 0;
DROP INDEX thread_due;
CREATE INDEX thread_due ON thread (needs_caller, due) WHERE due IS NOT NULL;

-- Programs are named by the newest migration that they know. A migration that older programs cannot work with raises the last two.
CREATE TABLE schema (
    only       INTEGER PRIMARY KEY CHECK (only = 1),
    version    INTEGER NOT NULL, -- the newest migration that was applied
    min_reader INTEGER NOT NULL, -- the oldest program that may read
    min_writer INTEGER NOT NULL  -- the oldest program that may write
) STRICT;
INSERT INTO schema VALUES (1, 14, 14, 14);

-- No query reads by these, and every message paid for both.
DROP INDEX message_chain;
DROP INDEX message_fp;
