-- What people change in notes: an entry with another text names the entry with the text before, and each generation says why it began.

ALTER TABLE observation ADD COLUMN replaces INTEGER; -- id of the entry with the text before; 0: not kept under an id; NULL: as the model wrote it

-- Generations that began before this table was made have no row.
CREATE TABLE generation (
    thread_id INTEGER NOT NULL REFERENCES thread (id) ON DELETE CASCADE,
    number    INTEGER NOT NULL,
    why       TEXT    NOT NULL, -- 'reflection', 'undo', 'fork', 'edit', 'forgotten' or 'scope'
    at        REAL    NOT NULL,
    PRIMARY KEY (thread_id, number)
) STRICT, WITHOUT ROWID;
