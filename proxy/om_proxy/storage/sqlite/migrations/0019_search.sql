-- The index of original messages (docs/spec/recall.md). It is empty while `memory.retrieval` is off, and no turn writes it.
--
-- Each scope, the resource of a tenant, has posting lists of its own: its number and a `z` stand before each
-- word. So a search reads nothing of other tenants, and costs what its own resource costs.

CREATE TABLE search_scope (
    id       INTEGER PRIMARY KEY AUTOINCREMENT, -- never reused
    tenant   TEXT NOT NULL,
    resource TEXT NOT NULL,
    UNIQUE (tenant, resource)
) STRICT;

CREATE TABLE indexed_thread (
    thread_id  INTEGER PRIMARY KEY REFERENCES thread (id) ON DELETE CASCADE,
    scope      INTEGER NOT NULL,
    rules      INTEGER NOT NULL, -- INDEX_VERSION of the passages up to indexed_to
    indexed_to INTEGER NOT NULL, -- seq
    remade_to  INTEGER NOT NULL  -- seq up to which passages are of newer rules already; 0: none
) STRICT;
CREATE INDEX indexed_thread_scope ON indexed_thread (scope);

CREATE TABLE passage (
    id         INTEGER PRIMARY KEY,
    scope      INTEGER NOT NULL,
    thread_id  INTEGER NOT NULL REFERENCES thread (id) ON DELETE CASCADE,
    seq        INTEGER NOT NULL,
    place      INTEGER NOT NULL,
    position   INTEGER NOT NULL,
    visit      INTEGER NOT NULL,
    role       ANY     NOT NULL,
    at         REAL    NOT NULL,
    length     INTEGER NOT NULL,
    words      TEXT    NOT NULL, -- with a space between
    side_words TEXT    NOT NULL,
    UNIQUE (thread_id, seq, place)
) STRICT;
CREATE INDEX passage_scope ON passage (scope) WHERE place = 0;
CREATE INDEX passage_position ON passage (thread_id, position) WHERE place = 0;

-- Before SQLite 3.43 a table without content deletes only with the words at hand: `passage` keeps them.
CREATE VIRTUAL TABLE passage_words USING fts5(words, content='', tokenize='ascii', detail=none, columnsize=0);

-- Words that are deleted stay in old segments until they are merged; erasing does that where this says so.
CREATE TABLE search_erasure (
    only  INTEGER PRIMARY KEY CHECK (only = 1),
    asked INTEGER NOT NULL -- words were deleted since all segments were merged
) STRICT;
INSERT INTO search_erasure VALUES (1, 0);

CREATE TRIGGER passage_comes AFTER INSERT ON passage BEGIN
    INSERT INTO passage_words (rowid, words) VALUES (NEW.id,
        NEW.scope || 'z' || replace(NEW.words || ' ' || NEW.side_words, ' ', ' ' || NEW.scope || 'z'));
END;
CREATE TRIGGER passage_goes AFTER DELETE ON passage BEGIN
    INSERT INTO passage_words (passage_words, rowid, words) VALUES ('delete', OLD.id,
        OLD.scope || 'z' || replace(OLD.words || ' ' || OLD.side_words, ' ', ' ' || OLD.scope || 'z'));
    UPDATE search_erasure SET asked = 1 WHERE asked = 0;
END;
-- The name of a resource goes with its last indexed thread.
CREATE TRIGGER scope_goes AFTER DELETE ON indexed_thread
    WHEN NOT EXISTS (SELECT 1 FROM indexed_thread WHERE scope = OLD.scope) BEGIN
    DELETE FROM search_scope WHERE id = OLD.scope;
END;

-- What is no longer live, or has another text, is not found any more; what is live again is indexed again. No new message fires these.
CREATE TRIGGER message_changes_state AFTER UPDATE OF live, raw ON message
    WHEN OLD.live IS NOT NEW.live OR OLD.raw IS NOT NEW.raw BEGIN
    DELETE FROM passage WHERE thread_id = NEW.thread_id AND seq >= NEW.seq;
    UPDATE indexed_thread SET (indexed_to, remade_to) = (min(indexed_to, NEW.seq - 1), min(remade_to, NEW.seq - 1))
        WHERE thread_id = NEW.thread_id AND indexed_to >= NEW.seq;
END;
CREATE TRIGGER thread_changes_scope AFTER UPDATE OF tenant, resource ON thread
    WHEN (OLD.tenant, OLD.resource) IS NOT (NEW.tenant, NEW.resource) BEGIN
    DELETE FROM passage WHERE thread_id = NEW.id;
    DELETE FROM indexed_thread WHERE thread_id = NEW.id;
END;
