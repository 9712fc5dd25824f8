-- Forgotten bytes leave the files once every table is rewritten (om-proxy erase --rewrite). Who forgets and who rewrites both take numbers
-- from the sequence of versions, so a receipt with a smaller number than a whole rewrite is of bytes that are gone.
ALTER TABLE om.receipt ADD COLUMN number bigint NOT NULL DEFAULT nextval('om.version');
CREATE TABLE om.rewrite (
    name    text   PRIMARY KEY, -- of a table; empty: all of them
    through bigint NOT NULL     -- what was forgotten before this number is not in its files any more
);

-- ANALYZE copies values into pg_statistic, where forgetting does not reach: not of columns with words or names. Setting a type to what it
-- is takes away what was copied before. A trigger that reads a column stands in the way of that, and is made anew.
DROP TRIGGER keys_of_thread_go ON om.thread;
DROP TRIGGER keys_of_thread_change ON om.thread;
ALTER TABLE om.secret ALTER value SET STATISTICS 0, ALTER value TYPE bytea;
ALTER TABLE om.thread
    ALTER resource SET STATISTICS 0, ALTER resource TYPE text COLLATE "C",
    ALTER thread SET STATISTICS 0, ALTER thread TYPE text COLLATE "C",
    ALTER model SET STATISTICS 0, ALTER model TYPE bytea,
    ALTER title SET STATISTICS 0, ALTER title TYPE bytea,
    ALTER others SET STATISTICS 0, ALTER others TYPE bytea,
    ALTER key_id SET STATISTICS 0, ALTER key_id TYPE bytea,
    ALTER state SET STATISTICS 0, ALTER state TYPE bytea;
CREATE TRIGGER keys_of_thread_go AFTER DELETE ON om.thread FOR EACH ROW WHEN (OLD.key_id IS NOT NULL)
    EXECUTE FUNCTION om.remove_keys();
CREATE TRIGGER keys_of_thread_change AFTER UPDATE ON om.thread FOR EACH ROW
    WHEN (OLD.key_id IS NOT NULL AND (OLD.key_id IS DISTINCT FROM NEW.key_id OR OLD.others IS DISTINCT FROM NEW.others))
    EXECUTE FUNCTION om.remove_keys();
ALTER TABLE om.lease
    ALTER resource SET STATISTICS 0, ALTER resource TYPE text COLLATE "C",
    ALTER thread SET STATISTICS 0, ALTER thread TYPE text COLLATE "C";
ALTER TABLE om.message
    ALTER fp SET STATISTICS 0, ALTER fp TYPE bytea,
    ALTER chain SET STATISTICS 0, ALTER chain TYPE bytea,
    ALTER role SET STATISTICS 0, ALTER role TYPE bytea,
    ALTER calls SET STATISTICS 0, ALTER calls TYPE bytea,
    ALTER answers SET STATISTICS 0, ALTER answers TYPE bytea,
    ALTER raw SET STATISTICS 0, ALTER raw TYPE bytea;
ALTER TABLE om.observation
    ALTER chain SET STATISTICS 0, ALTER chain TYPE bytea,
    ALTER text SET STATISTICS 0, ALTER text TYPE bytea,
    ALTER task SET STATISTICS 0, ALTER task TYPE bytea,
    ALTER suggestion SET STATISTICS 0, ALTER suggestion TYPE bytea,
    ALTER title SET STATISTICS 0, ALTER title TYPE bytea,
    ALTER model SET STATISTICS 0, ALTER model TYPE bytea,
    ALTER parts SET STATISTICS 0, ALTER parts TYPE bytea;
ALTER TABLE om.reflection
    ALTER text SET STATISTICS 0, ALTER text TYPE bytea,
    ALTER task SET STATISTICS 0, ALTER task TYPE bytea,
    ALTER suggestion SET STATISTICS 0, ALTER suggestion TYPE bytea,
    ALTER model SET STATISTICS 0, ALTER model TYPE bytea;
ALTER TABLE om.event
    ALTER data SET STATISTICS 0, ALTER data TYPE text,
    ALTER sealed SET STATISTICS 0, ALTER sealed TYPE bytea;
ALTER TABLE om.data_key
    ALTER id SET STATISTICS 0, ALTER id TYPE bytea,
    ALTER wrapped SET STATISTICS 0, ALTER wrapped TYPE bytea;
ALTER TABLE om.ledger ALTER resource SET STATISTICS 0, ALTER resource TYPE text COLLATE "C";
