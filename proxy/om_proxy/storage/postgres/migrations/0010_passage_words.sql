-- The words of passages that have no `posted` (see migration 0009). There are none yet, so no word is read, and the table is locked for
-- one scan: 1.4 to 5 s for a million passages of 40 words at a load of 6 a core. An index of all of them takes 50 s of the processor
-- alone. The lock is a `SHARE` one, in a transaction of its own: searches and new messages go on.

CREATE INDEX passage_words ON om.passage USING gin (string_to_array(scope::text || 'z'
    || replace(words || ' ' || side_words, ' ', ' ' || scope::text || 'z'), ' ')) WITH (fastupdate = off) WHERE posted IS NULL;
-- ANALYZE copies no words of it
ALTER INDEX om.passage_words ALTER COLUMN 1 SET STATISTICS 0;
