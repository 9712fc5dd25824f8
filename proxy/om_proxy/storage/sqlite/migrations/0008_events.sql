-- What happened to memories, in the order of the commits that it belongs to. An event goes with its thread: only the event of
-- its forgetting has none, and names the thread by its label.
CREATE TABLE event (
    id        INTEGER PRIMARY KEY AUTOINCREMENT, -- the cursor: never reused, also not after the newest row is gone
    tenant    TEXT    NOT NULL,
    thread_id INTEGER REFERENCES thread (id) ON DELETE CASCADE,
    at        REAL    NOT NULL,
    type      TEXT    NOT NULL,
    data      TEXT    NOT NULL -- JSON in ASCII, as it is sent
) STRICT;
CREATE INDEX event_thread ON event (thread_id, id);

-- Events up to this id may be gone because of their number or age.
CREATE TABLE event_pruning (
    only    INTEGER PRIMARY KEY CHECK (only = 1),
    through INTEGER NOT NULL
) STRICT;
INSERT INTO event_pruning VALUES (1, 0);
