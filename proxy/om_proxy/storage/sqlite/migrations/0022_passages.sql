-- A message's neighbours are found by their `seq`, which the table's own index has: a second index by `position` took a tenth of what is
-- indexed of short messages. A program that does not know this migration finds them more slowly.
DROP INDEX passage_position;
