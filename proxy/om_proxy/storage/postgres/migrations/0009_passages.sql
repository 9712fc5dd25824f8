-- No row of a passage keeps its words a second time, each with its scope before it: the index of migration 0010 makes them from what
-- ranking reads. A message's neighbours are found by their `seq`, which the table's own index has. Together they were half of the index
-- of originals.
--
-- A program that does not know this migration goes on to write `posted`, and finds what such programs wrote. A later release, which
-- removes the column and its index, indexes those passages anew before.

ALTER TABLE om.passage ALTER posted DROP NOT NULL;
DROP INDEX om.passage_position;
