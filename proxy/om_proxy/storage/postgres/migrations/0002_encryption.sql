-- Text may be encrypted: each memory then has a data key of its own, wrapped by a master key that is not in this database.

ALTER TABLE om.thread ADD COLUMN key_id bytea; -- of its data key; NULL: its text is not encrypted
ALTER TABLE om.event ADD COLUMN sealed bytea;  -- JSON of the fields with words of a conversation, encrypted; they are null in `data` then

CREATE TABLE om.data_key (
    id      bytea PRIMARY KEY,
    master  text  NOT NULL, -- id of the master key that wraps it
    wrapped bytea NOT NULL
);

-- A row: memories that begin now are encrypted, and so is the secret.
CREATE TABLE om.encryption (
    id     smallint PRIMARY KEY CHECK (id = 1),
    master text NOT NULL -- id of the newest master key
);

-- A key goes with what it encrypts, whoever removes that. What a prompt tells of other threads has a key of its own, whose id stands
-- before the text.
CREATE FUNCTION om.remove_keys() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        DELETE FROM om.data_key WHERE id IN (OLD.key_id, substr(OLD.others, 1, 16));
    ELSE
        DELETE FROM om.data_key WHERE id IN (OLD.key_id, substr(OLD.others, 1, 16))
            AND id IS DISTINCT FROM NEW.key_id AND id IS DISTINCT FROM substr(NEW.others, 1, 16);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER keys_of_thread_go AFTER DELETE ON om.thread FOR EACH ROW WHEN (OLD.key_id IS NOT NULL)
    EXECUTE FUNCTION om.remove_keys();
CREATE TRIGGER keys_of_thread_change AFTER UPDATE ON om.thread FOR EACH ROW
    WHEN (OLD.key_id IS NOT NULL AND (OLD.key_id IS DISTINCT FROM NEW.key_id OR OLD.others IS DISTINCT FROM NEW.others))
    EXECUTE FUNCTION om.remove_keys();
