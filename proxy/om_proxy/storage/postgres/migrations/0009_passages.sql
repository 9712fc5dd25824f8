-- The index makes the words of a passage, each with its scope before it, from what ranking reads, and no row keeps them once more. A
-- message's neighbours are found by their `seq`, which the table's own index has. Together they were half of the index of originals.
--
-- A program that does not know this migration writes `posted` still, and finds what such programs wrote; a later one removes the column
-- and its index.

ALTER TABLE om.passage ALTER posted DROP NOT NULL;
DROP INDEX om.passage_position;
CREATE INDEX passage_words ON om.passage USING gin (string_to_array(scope::text || 'z'
    || replace(words || ' ' || side_words, ' ', ' ' || scope::text || 'z'), ' ')) WITH (fastupdate = off);
-- ANALYZE copies no words of it
ALTER INDEX om.passage_words ALTER COLUMN 1 SET STATISTICS 0;
