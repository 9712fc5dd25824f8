-- Text may be encrypted: each memory then has a data key of its own, wrapped by a master key that is not in this file.

ALTER TABLE thread ADD COLUMN key_id BLOB; -- of its data key; NULL: its text is not encrypted
ALTER TABLE event ADD COLUMN sealed BLOB;  -- JSON of the fields with words of a conversation, encrypted; they are null in `data` then

CREATE TABLE data_key (
    id      BLOB PRIMARY KEY,
    master  TEXT NOT NULL, -- id of the master key that wraps it
    wrapped BLOB NOT NULL
) STRICT, WITHOUT ROWID;

-- A row: memories that begin now are encrypted, and so is the secret.
CREATE TABLE encryption (
    only   INTEGER PRIMARY KEY CHECK (only = 1),
    master TEXT NOT NULL -- id of the newest master key
) STRICT;

-- A key goes with what it encrypts, whoever removes that. What a prompt tells of other threads has a key of its own, whose id stands
-- before the text.
CREATE TRIGGER key_of_thread_goes AFTER DELETE ON thread WHEN OLD.key_id IS NOT NULL BEGIN
    DELETE FROM data_key WHERE id IN (OLD.key_id, substr(OLD.others, 1, 16));
END;
CREATE TRIGGER key_of_thread_changes AFTER UPDATE OF key_id ON thread WHEN OLD.key_id IS NOT NULL AND OLD.key_id IS NOT NEW.key_id BEGIN
    DELETE FROM data_key WHERE id = OLD.key_id;
END;
CREATE TRIGGER key_of_others_goes AFTER UPDATE OF others ON thread
    WHEN OLD.key_id IS NOT NULL AND OLD.others <> '' AND substr(OLD.others, 1, 16) IS NOT substr(NEW.others, 1, 16) BEGIN
    DELETE FROM data_key WHERE id = substr(OLD.others, 1, 16);
END;
