-- A thread's memory: its row, its messages, its observations, and which of them made up each generation of the log.
--
-- ANY marks text that came from outside: TEXT as a rule, BLOB (UTF-8 with surrogates passed) where it holds a lone surrogate,
-- which TEXT cannot. Times are unix seconds.

-- One counter for the whole file, so that a forgotten and re-created thread never repeats a version.
CREATE TABLE sequence (
    only  INTEGER PRIMARY KEY CHECK (only = 1),
    value INTEGER NOT NULL
) STRICT;
INSERT INTO sequence VALUES (1, 0);

-- What tenants and fingerprints are keyed with; made by the first process that asks.
CREATE TABLE secret (
    only  INTEGER PRIMARY KEY CHECK (only = 1),
    value BLOB NOT NULL
) STRICT;

CREATE TABLE thread (
    id              INTEGER PRIMARY KEY, -- the version it was created with: never reused
    tenant          TEXT    NOT NULL,
    resource        TEXT    NOT NULL,
    thread          TEXT    NOT NULL,
    version         INTEGER NOT NULL,
    created_at      REAL    NOT NULL,
    next_seq        INTEGER NOT NULL,
    next_id         INTEGER NOT NULL,
    generation      INTEGER NOT NULL,
    next_generation INTEGER NOT NULL,
    coverage        INTEGER NOT NULL,
    covered_count   INTEGER NOT NULL,
    covered_tokens  INTEGER NOT NULL,
    live_count      INTEGER NOT NULL, -- for lists: nobody counts messages
    turn_at         REAL,
    due             REAL,
    failures        INTEGER NOT NULL,
    retry_at        REAL    NOT NULL,
    parked          INTEGER NOT NULL,
    model           ANY,
    title           ANY,
    state           BLOB    NOT NULL, -- JSON of what is never searched for
    UNIQUE (tenant, resource, thread)
) STRICT;
CREATE INDEX thread_due ON thread (due) WHERE due IS NOT NULL;

-- Beside the thread, not in it: a lease may precede the first commit, and taking one rewrites no big row.
CREATE TABLE lease (
    tenant   TEXT NOT NULL,
    resource TEXT NOT NULL,
    thread   TEXT NOT NULL,
    holder   TEXT NOT NULL,
    until    REAL NOT NULL,
    PRIMARY KEY (tenant, resource, thread)
) STRICT, WITHOUT ROWID;

CREATE TABLE message (
    thread_id INTEGER NOT NULL REFERENCES thread (id) ON DELETE CASCADE,
    seq       INTEGER NOT NULL,
    live      INTEGER NOT NULL,
    parent    INTEGER NOT NULL, -- seq of the live message before it, 0 for the first
    fp        BLOB    NOT NULL,
    chain     BLOB    NOT NULL,
    role      ANY     NOT NULL,
    calls     ANY,              -- JSON array, NULL for none
    answers   ANY,
    tokens    INTEGER NOT NULL,
    at        REAL    NOT NULL,
    raw       BLOB    NOT NULL, -- last, so that reading marks never follows its overflow pages
    PRIMARY KEY (thread_id, seq)
) STRICT;
CREATE INDEX message_live ON message (thread_id, live, seq);
CREATE INDEX message_chain ON message (thread_id, chain);
CREATE INDEX message_fp ON message (thread_id, fp);

CREATE TABLE observation (
    thread_id     INTEGER NOT NULL REFERENCES thread (id) ON DELETE CASCADE,
    id            INTEGER NOT NULL,
    state         TEXT    NOT NULL CHECK (state IN ('chunk', 'log')),
    after_seq     INTEGER NOT NULL,
    last_seq      INTEGER NOT NULL,
    chain         BLOB    NOT NULL,
    tokens        INTEGER NOT NULL,
    source_tokens INTEGER NOT NULL,
    at            REAL    NOT NULL,
    kind          TEXT    NOT NULL,
    model         ANY     NOT NULL,
    title         ANY,
    task          ANY,
    suggestion    ANY,
    text          ANY     NOT NULL,
    PRIMARY KEY (thread_id, id)
) STRICT;
CREATE INDEX observation_chunk ON observation (thread_id, last_seq, id) WHERE state = 'chunk';

-- Generations share their entries: one row per place in a log, so the current generation grows by one row per activation
-- and an older one stays as it was.
CREATE TABLE entry (
    thread_id      INTEGER NOT NULL REFERENCES thread (id) ON DELETE CASCADE,
    generation     INTEGER NOT NULL,
    position       INTEGER NOT NULL,
    observation_id INTEGER NOT NULL,
    PRIMARY KEY (thread_id, generation, position),
    FOREIGN KEY (thread_id, observation_id) REFERENCES observation (thread_id, id)
) STRICT, WITHOUT ROWID;

CREATE TABLE reflection (
    thread_id     INTEGER PRIMARY KEY REFERENCES thread (id) ON DELETE CASCADE,
    generation    INTEGER NOT NULL,
    sources       TEXT    NOT NULL, -- JSON array of observation ids
    tokens        INTEGER NOT NULL,
    source_tokens INTEGER NOT NULL,
    at            REAL    NOT NULL,
    model         ANY     NOT NULL,
    task          ANY,
    suggestion    ANY,
    text          ANY     NOT NULL
) STRICT;
