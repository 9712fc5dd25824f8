-- Wrapped keys may live in a key store of their own (storage.keys_url), of which copies of this file know nothing.

ALTER TABLE encryption ADD COLUMN key_store TEXT; -- its id; NULL: the keys are in `data_key`

-- Keys to be destroyed there, because the transaction that names them here has removed what they encrypt.
CREATE TABLE doomed_key (id BLOB PRIMARY KEY) STRICT, WITHOUT ROWID;

CREATE TRIGGER key_of_thread_is_doomed AFTER DELETE ON thread WHEN OLD.key_id IS NOT NULL BEGIN
    INSERT OR IGNORE INTO doomed_key SELECT key.id FROM encryption, (
        SELECT OLD.key_id AS id UNION SELECT substr(OLD.others, 1, 16) WHERE length(OLD.others) > 16) AS key
        WHERE key_store IS NOT NULL;
END;
CREATE TRIGGER changed_key_is_doomed AFTER UPDATE OF key_id ON thread WHEN OLD.key_id IS NOT NULL AND OLD.key_id IS NOT NEW.key_id BEGIN
    INSERT OR IGNORE INTO doomed_key SELECT OLD.key_id FROM encryption WHERE key_store IS NOT NULL;
END;
CREATE TRIGGER key_of_others_is_doomed AFTER UPDATE OF others ON thread
    WHEN OLD.key_id IS NOT NULL AND length(OLD.others) > 16 AND substr(OLD.others, 1, 16) IS NOT substr(NEW.others, 1, 16) BEGIN
    INSERT OR IGNORE INTO doomed_key SELECT substr(OLD.others, 1, 16) FROM encryption WHERE key_store IS NOT NULL;
END;

-- Whether any row names a key.
CREATE INDEX thread_key ON thread (key_id) WHERE key_id IS NOT NULL;
CREATE INDEX thread_key_of_others ON thread (substr(others, 1, 16)) WHERE key_id IS NOT NULL AND length(others) > 16;
