-- Wrapped keys may live in a key store of their own (storage.keys_url), of which copies of this database know nothing.

ALTER TABLE om.encryption ADD COLUMN key_store text; -- its id; NULL: the keys are in `data_key`

-- Keys to be destroyed there, because the transaction that names them here has removed what they encrypt.
CREATE TABLE om.doomed_key (id bytea PRIMARY KEY);
ALTER TABLE om.doomed_key ALTER id SET STATISTICS 0;

CREATE FUNCTION om.doom_keys() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM om.encryption WHERE key_store IS NOT NULL) THEN
        INSERT INTO om.doomed_key
            SELECT key.id FROM (SELECT OLD.key_id UNION SELECT substr(OLD.others, 1, 16) WHERE length(OLD.others) > 16) AS key (id)
            WHERE TG_OP = 'DELETE' OR (key.id IS DISTINCT FROM NEW.key_id AND key.id IS DISTINCT FROM substr(NEW.others, 1, 16))
            ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER keys_of_thread_are_doomed AFTER DELETE ON om.thread FOR EACH ROW WHEN (OLD.key_id IS NOT NULL)
    EXECUTE FUNCTION om.doom_keys();
CREATE TRIGGER changed_keys_are_doomed AFTER UPDATE ON om.thread FOR EACH ROW
    WHEN (OLD.key_id IS NOT NULL AND (OLD.key_id IS DISTINCT FROM NEW.key_id OR OLD.others IS DISTINCT FROM NEW.others))
    EXECUTE FUNCTION om.doom_keys();

-- Whether any row names a key.
CREATE INDEX thread_key ON om.thread (key_id) WHERE key_id IS NOT NULL;
CREATE INDEX thread_key_of_others ON om.thread (substr(others, 1, 16)) WHERE key_id IS NOT NULL AND length(others) > 16;
