-- Memories in one SQLite file.
--
-- ANY marks text that came from outside: TEXT as a rule, BLOB (UTF-8 with surrogates passed) where it holds a lone surrogate,
-- which TEXT cannot. Large columns stand last: reading the others never follows their overflow pages. Times are unix seconds.

-- Programs are named by the newest migration that they know. A migration that older programs cannot work with raises the last two.
CREATE TABLE schema (
    only       INTEGER PRIMARY KEY CHECK (only = 1),
    version    INTEGER NOT NULL, -- the newest migration that was applied
    min_reader INTEGER NOT NULL, -- the oldest program that may read
    min_writer INTEGER NOT NULL  -- the oldest program that may write
) STRICT;
INSERT INTO schema VALUES (1, 1, 1, 1);

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

-- ── a thread's memory: its row, its messages, its notes ──

-- A thread with an empty name is the hub of a resource: it holds the log that the resource's threads share.
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
    delivered       INTEGER, -- seq of the newest reply that is known to have gone out to its last byte; NULL: of none
    due             REAL,
    needs_caller    INTEGER NOT NULL DEFAULT 0, -- 1: the work that is due needs a credential that only a request brings
    failures        INTEGER NOT NULL,
    retry_at        REAL    NOT NULL,
    parked          INTEGER NOT NULL,
    shared          INTEGER NOT NULL DEFAULT 0, -- 1: its log is its resource's
    pending         INTEGER NOT NULL DEFAULT 0, -- tokens of its tail: a list counts nothing
    fresh           INTEGER NOT NULL DEFAULT 0, -- of them: could be observed and are not; kept for shared ones only, as is the next
    chunked         INTEGER NOT NULL DEFAULT 0, -- of them: observed, not yet in the log
    model           ANY,
    title           ANY,
    key_id          BLOB, -- of its data key; NULL: its text is not encrypted
    others          ANY     NOT NULL DEFAULT '', -- what its prompt tells of the resource's other threads
    state           BLOB    NOT NULL, -- JSON of what is never searched for
    UNIQUE (tenant, resource, thread)
) STRICT;
-- The oldest due threads of one tenant after another, without looking at all that are due.
CREATE INDEX thread_due ON thread (tenant, needs_caller, due) WHERE due IS NOT NULL;
CREATE INDEX thread_shared ON thread (tenant, resource, turn_at, pending, fresh, chunked) WHERE shared = 1;
-- Lists of threads: the most recent first, by what a name or a title begins with, and those that fail.
CREATE INDEX thread_recent ON thread (tenant, ifnull(turn_at, created_at), id) WHERE thread <> '';
CREATE INDEX thread_recent_of_all ON thread (ifnull(turn_at, created_at), id) WHERE thread <> '';
-- No turn writes the next two: a commit leaves out a title that stays.
CREATE INDEX thread_name ON thread (tenant, thread);
CREATE INDEX thread_title ON thread (tenant, title) WHERE title IS NOT NULL;
CREATE INDEX thread_failing ON thread (tenant) WHERE failures > 0 AND parked = 0;
CREATE INDEX thread_parked ON thread (tenant) WHERE parked = 1;
-- Whether any row names a key. What a prompt tells of other threads has a key of its own, whose id stands before the text.
CREATE INDEX thread_key ON thread (key_id) WHERE key_id IS NOT NULL;
CREATE INDEX thread_key_of_others ON thread (substr(others, 1, 16)) WHERE key_id IS NOT NULL AND length(others) > 16;

-- Beside the thread, not in it: a lease may precede the first commit, and taking one rewrites no big row.
CREATE TABLE lease (
    tenant   TEXT NOT NULL,
    resource TEXT NOT NULL,
    thread   TEXT NOT NULL,
    holder   TEXT NOT NULL,
    until    REAL NOT NULL,
    PRIMARY KEY (tenant, resource, thread)
) STRICT, WITHOUT ROWID;

-- Chains and fingerprints have no index: no query reads by them, and every message would pay for it.
CREATE TABLE message (
    thread_id INTEGER NOT NULL REFERENCES thread (id) ON DELETE CASCADE,
    seq       INTEGER NOT NULL,
    live      INTEGER NOT NULL, -- 1 live, 0 superseded, 2 an interrupted reply that was never live
    parent    INTEGER NOT NULL, -- seq of the live message before it, 0 for the first
    fp        BLOB    NOT NULL,
    chain     BLOB    NOT NULL,
    role      ANY     NOT NULL,
    calls     ANY,              -- JSON array, NULL for none
    answers   ANY,
    tokens    INTEGER NOT NULL,
    encoding  TEXT    NOT NULL DEFAULT '', -- of tokens, by which `tokens` was counted; empty: not known
    at        REAL    NOT NULL,
    raw       BLOB    NOT NULL,
    look_ups  BLOB, -- what the model looked up for a reply, for later prompts; mostly NULL
    PRIMARY KEY (thread_id, seq)
) STRICT;
CREATE INDEX message_live ON message (thread_id, live, seq);
-- Forgetting a thread takes what others of its resource looked up, and finds it here.
CREATE INDEX message_look_ups ON message (thread_id) WHERE look_ups IS NOT NULL;

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
    depth         INTEGER NOT NULL DEFAULT 0, -- how often its words have been condensed
    replaces      INTEGER, -- id of the entry with the text before; 0: not kept under an id; NULL: as the model wrote it
    sources       TEXT,    -- JSON array of the ids a reflection was made from
    parts         BLOB,    -- JSON of what an entry of a shared log covers, thread by thread
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

-- Why each generation began; the first one has no row.
CREATE TABLE generation (
    thread_id INTEGER NOT NULL REFERENCES thread (id) ON DELETE CASCADE,
    number    INTEGER NOT NULL,
    why       TEXT    NOT NULL, -- GenerationCause of memory/model.py
    at        REAL    NOT NULL,
    PRIMARY KEY (thread_id, number)
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

-- ── encryption: each memory has a data key of its own, wrapped by a master key that is not in this file ──

-- A row: memories that begin now are encrypted, and so is the secret.
CREATE TABLE encryption (
    only      INTEGER PRIMARY KEY CHECK (only = 1),
    master    TEXT NOT NULL, -- id of the newest master key
    key_store TEXT           -- id of the key store (storage.keys_url), of which copies of this file know nothing; NULL: the keys are in `data_key`
) STRICT;

CREATE TABLE data_key (
    id      BLOB PRIMARY KEY,
    master  TEXT NOT NULL, -- id of the master key that wraps it
    wrapped BLOB NOT NULL
) STRICT, WITHOUT ROWID;

-- A key goes with what it encrypts, whoever removes that.
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

-- Keys to be destroyed in the key store, because the transaction that names them here has removed what they encrypt.
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

-- ── forgetting ──

-- The names of threads, resources and tenants that were asked to be forgotten, also where nothing of them was stored: a turn that began
-- before stores no first row of its thread. A name is its HMAC under the store's secret. Entries go by age and number.
CREATE TABLE forgotten_name (
    digest BLOB PRIMARY KEY,
    at     REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX forgotten_name_at ON forgotten_name (at);

-- What was forgotten must leave the file too. Each thread that is forgotten is asked for once more; what was asked for is done once a
-- checkpoint has emptied the WAL. A process that ends between the two leaves the rest to the others, or to the next one.
CREATE TABLE erasure (
    only      INTEGER PRIMARY KEY CHECK (only = 1),
    asked     INTEGER NOT NULL,
    done      INTEGER NOT NULL,
    -- For what the file has been written anew. Moved rows leave copies in the unused parts of pages, which `secure_delete` does not
    -- clear: so it is, before what was asked for is done.
    rewritten INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO erasure VALUES (1, 0, 0, 0);

-- ── records: what happened, who did it, what it cost ──

-- What happened to memories, in the order of the commits that it belongs to. An event goes with its thread: only the event of
-- its forgetting has none, and names the thread by its label.
CREATE TABLE event (
    id        INTEGER PRIMARY KEY AUTOINCREMENT, -- the cursor: never reused, also not after the newest row is gone
    tenant    TEXT    NOT NULL,
    thread_id INTEGER REFERENCES thread (id) ON DELETE CASCADE,
    at        REAL    NOT NULL,
    type      TEXT    NOT NULL,
    data      TEXT    NOT NULL, -- JSON in ASCII, as it is sent
    sealed    BLOB              -- JSON of the fields with words of a conversation, encrypted; they are null in `data` then
) STRICT;
CREATE INDEX event_thread ON event (thread_id, id);

-- Events up to this id may be gone because of their number or age.
CREATE TABLE event_pruning (
    only    INTEGER PRIMARY KEY CHECK (only = 1),
    through INTEGER NOT NULL
) STRICT;
INSERT INTO event_pruning VALUES (1, 0);

-- How far each webhook has got, so that a restart sends nothing again that its receiver has taken.
CREATE TABLE webhook (
    name     TEXT    PRIMARY KEY, -- a hash of its address
    cursor   INTEGER NOT NULL,    -- id of the last event that its receiver took
    failures INTEGER NOT NULL,    -- in a row
    cause    TEXT    NOT NULL,    -- of the last failure: our words
    at       REAL    NOT NULL     -- of the last attempt
) STRICT;

-- Who changed what, and what was forgotten: without names of threads, without texts.
CREATE TABLE audit (
    id     INTEGER PRIMARY KEY AUTOINCREMENT,
    at     REAL NOT NULL,
    who    TEXT NOT NULL, -- admin, cli, or a keyed digest of a credential
    tenant TEXT NOT NULL,
    what   TEXT NOT NULL,
    label  TEXT NOT NULL,
    counts TEXT NOT NULL  -- JSON object
) STRICT;
CREATE INDEX audit_of_tenant ON audit (tenant, id);
CREATE INDEX audit_at ON audit (at);
-- A record goes to another tenant with the threads that it is about; nothing else of it changes.
CREATE TRIGGER audit_is_not_changed BEFORE UPDATE OF id, at, who, what, counts ON audit BEGIN
    SELECT RAISE(ABORT, 'a record of the audit is never changed');
END;

CREATE TABLE receipt (
    id     TEXT PRIMARY KEY,
    at     REAL NOT NULL,
    tenant TEXT NOT NULL,
    scope  TEXT NOT NULL,
    label  TEXT NOT NULL,
    result TEXT NOT NULL  -- JSON array: the counts and states of what was forgotten
) STRICT, WITHOUT ROWID;
CREATE INDEX receipt_at ON receipt (at);

-- What model calls cost, and would have cost without memory: sums by day. Costs are micro-dollars.
-- A resource has a line of its own while it has a thread; what is forgotten stands under ''. Lines are removed by their age.
CREATE TABLE ledger (
    tenant                TEXT NOT NULL,
    day                   INTEGER NOT NULL, -- since 1970-01-01, in UTC
    resource              TEXT NOT NULL,
    model                 TEXT NOT NULL,
    who                   TEXT NOT NULL,    -- actor, observer or reflector
    history               TEXT NOT NULL,    -- full or partial: what the client sends
    calls                 INTEGER NOT NULL,
    input                 INTEGER NOT NULL,
    cached                INTEGER NOT NULL,
    cache_write           INTEGER NOT NULL,
    output                INTEGER NOT NULL,
    cost                  INTEGER NOT NULL,
    baseline_input        INTEGER NOT NULL,
    baseline_cached       INTEGER NOT NULL,
    baseline_cache_write  INTEGER NOT NULL,
    baseline_cost         INTEGER NOT NULL,
    estimated             INTEGER NOT NULL,
    unpriced              INTEGER NOT NULL,
    shadow_calls          INTEGER NOT NULL,
    shadow_received       INTEGER NOT NULL,
    shadow_sent           INTEGER NOT NULL,
    shadow_baseline_cost  INTEGER NOT NULL,
    shadow_cost           INTEGER NOT NULL,
    PRIMARY KEY (tenant, resource, day, model, who, history)
) STRICT, WITHOUT ROWID;
CREATE INDEX ledger_day ON ledger (day);

-- The newest batch of lines that each process has added: a batch that is sent twice is added once.
CREATE TABLE ledger_writer (
    writer TEXT PRIMARY KEY,
    batch  INTEGER NOT NULL,
    at     REAL NOT NULL
) STRICT, WITHOUT ROWID;

-- ── the index of original messages (docs/spec/recall.md) ──
--
-- It is empty while `memory.retrieval` is off, and no turn writes it. Each scope, the resource of a tenant, has posting lists of its own:
-- its number and a `z` stand before each word. So a search reads nothing of other tenants, and costs what its own resource costs.

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

-- A message's neighbours are found by their `seq`: a second index by `position` would take a tenth of what is indexed of short messages.
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

-- Before SQLite 3.43 a table without content deletes only with the words at hand: `passage` keeps them.
CREATE VIRTUAL TABLE passage_words USING fts5(words, content='', tokenize='ascii', detail=none, columnsize=0);

-- A vector for each indexed message (docs/spec/recall.md#vectors), of its first passage. It is empty while `retrieval.vector` is off.
CREATE TABLE passage_vector (
    passage_id INTEGER PRIMARY KEY REFERENCES passage (id) ON DELETE CASCADE,
    model      TEXT NOT NULL, -- as `retrieval.embedding_model` names it
    vector     BLOB NOT NULL  -- 2 bytes a number; empty: the model refused this message
) STRICT;

-- Words that are deleted stay in old segments until they are merged; erasing does that where this says so.
CREATE TABLE search_erasure (
    only    INTEGER PRIMARY KEY CHECK (only = 1),
    asked   INTEGER NOT NULL,          -- words were deleted since the merging of all segments began
    merging INTEGER NOT NULL DEFAULT 0 -- segments are merged in steps, and some are left
) STRICT;
INSERT INTO search_erasure VALUES (1, 0, 0);

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
