-- Threads that share their resource's log. The log itself is that of a thread row with an empty name, the hub of the resource.

ALTER TABLE thread ADD COLUMN shared  INTEGER NOT NULL DEFAULT 0; -- 1: its log is its resource's
ALTER TABLE thread ADD COLUMN pending INTEGER NOT NULL DEFAULT 0; -- tokens of its tail, kept for shared ones only, as are the next two
ALTER TABLE thread ADD COLUMN fresh   INTEGER NOT NULL DEFAULT 0; -- of them: could be observed and are not
ALTER TABLE thread ADD COLUMN chunked INTEGER NOT NULL DEFAULT 0; -- of them: observed, not yet in the log
ALTER TABLE thread ADD COLUMN others  ANY NOT NULL DEFAULT '';    -- what its prompt tells of the resource's other threads
CREATE INDEX thread_shared ON thread (tenant, resource, turn_at, pending, fresh, chunked) WHERE shared = 1;

ALTER TABLE observation ADD COLUMN parts   BLOB; -- JSON of what an entry of a shared log covers, thread by thread
ALTER TABLE observation ADD COLUMN sources TEXT; -- JSON array of the ids a reflection was made from
