-- Memories in a schema of their own: `om` stands for the name that `storage.prefix` gives it.
--
-- Names are text in the order of code points. Every text that came from outside is bytea, UTF-8 with surrogates passed: text refuses
-- NUL and lone surrogates. Times are unix seconds. No foreign keys: rows of a thread are written with its own row locked, and
-- forgetting removes them by name; a check for each message would cost a third of a turn.

-- Versions and ids of threads: not from a row, which would queue every commit behind the fsync of every other.
CREATE SEQUENCE om.version;

-- Which programs may use the schema: a program is named by the newest migration that it knows.
CREATE TABLE om.schema (
    id         smallint PRIMARY KEY CHECK (id = 1),
    version    integer  NOT NULL, -- the newest migration that was applied
    min_reader integer  NOT NULL, -- the oldest program that may read
    min_writer integer  NOT NULL  -- the oldest program that may write
);
INSERT INTO om.schema VALUES (1, 1, 1, 1);

-- What tenants and fingerprints are keyed with; made by the first process that asks.
CREATE TABLE om.secret (
    id    smallint PRIMARY KEY CHECK (id = 1),
    value bytea    NOT NULL
);

CREATE TABLE om.thread (
    id               bigint PRIMARY KEY, -- the version it was created with: never reused
    tenant           text COLLATE "C" NOT NULL,
    resource         text COLLATE "C" NOT NULL,
    thread           text COLLATE "C" NOT NULL, -- empty: the shared log of the resource
    version          bigint  NOT NULL,
    rewound          bigint  NOT NULL DEFAULT 0, -- version of the newest commit that cannot be told as changes
    created_at       double precision NOT NULL,
    next_seq         bigint  NOT NULL,
    next_id          bigint  NOT NULL,
    generation       bigint  NOT NULL,
    next_generation  bigint  NOT NULL,
    coverage         bigint  NOT NULL,
    covered_count    bigint  NOT NULL,
    covered_tokens   bigint  NOT NULL,
    live_count       bigint  NOT NULL, -- for lists: nobody counts messages
    turn_at          double precision,
    due              double precision,
    failures         bigint  NOT NULL,
    retry_at         double precision NOT NULL,
    parked           boolean NOT NULL,
    model            bytea,
    title            bytea,
    has_plain_title  boolean NOT NULL, -- whether the title has no lone surrogate: others begin with no prefix
    shared           boolean NOT NULL, -- its log is its resource's
    pending          bigint  NOT NULL, -- tokens of its tail
    fresh            bigint  NOT NULL, -- of them: could be observed and are not; kept for shared ones only, as is the next
    chunked          bigint  NOT NULL, -- of them: observed, not yet in the log
    others           bytea   NOT NULL, -- what its prompt tells of the resource's other threads
    needs_caller     boolean NOT NULL, -- its work needs a credential that only a request brings
    log_tokens       bigint  NOT NULL, -- of its own log, for lists and sums: they read no notes
    reflected_tokens bigint  NOT NULL, -- of them: written by the reflector
    delivered        bigint,           -- seq of the newest reply that went out to its last byte
    state            bytea   NOT NULL, -- JSON of what is never searched for
    UNIQUE (tenant, resource, thread)
) WITH (fillfactor = 70);
CREATE INDEX thread_due ON om.thread (tenant, due, id) WHERE due IS NOT NULL;
CREATE INDEX thread_shared ON om.thread (tenant, resource) WHERE shared;
CREATE INDEX thread_recent ON om.thread (tenant, coalesce(turn_at, created_at), id) WHERE thread <> '';
CREATE INDEX thread_recent_of_all ON om.thread (coalesce(turn_at, created_at), id) WHERE thread <> '';
CREATE INDEX thread_name ON om.thread (tenant, thread);
CREATE INDEX thread_title ON om.thread (tenant, title) WHERE has_plain_title;
CREATE INDEX thread_failing ON om.thread (tenant) WHERE failures > 0 AND NOT parked;
CREATE INDEX thread_parked ON om.thread (tenant) WHERE parked;

-- Beside the thread, not in it: a lease may precede the first commit, and taking one rewrites no big row.
CREATE TABLE om.lease (
    tenant   text COLLATE "C" NOT NULL,
    resource text COLLATE "C" NOT NULL,
    thread   text COLLATE "C" NOT NULL,
    holder   text NOT NULL,
    until    double precision NOT NULL, -- by this server's clock
    PRIMARY KEY (tenant, resource, thread)
);

CREATE TABLE om.message (
    thread_id bigint   NOT NULL,
    seq       bigint   NOT NULL,
    v         bigint   NOT NULL, -- the version that wrote the row
    live      smallint NOT NULL, -- 1 live, 0 superseded, 2 an interrupted reply that was never live
    parent    bigint   NOT NULL, -- seq of the live message before it, 0 for the first
    fp        bytea    NOT NULL,
    chain     bytea    NOT NULL,
    role      bytea    NOT NULL,
    calls     bytea,             -- JSON array, NULL for none
    answers   bytea,
    tokens    bigint   NOT NULL,
    encoding  text     NOT NULL, -- of tokens, by which `tokens` was counted; empty: not known
    at        double precision NOT NULL,
    raw       bytea    NOT NULL,
    PRIMARY KEY (thread_id, seq)
);

CREATE TABLE om.observation (
    thread_id     bigint NOT NULL,
    id            bigint NOT NULL,
    v             bigint NOT NULL, -- the version that wrote its text
    state         text   NOT NULL CHECK (state IN ('chunk', 'log')),
    after_seq     bigint NOT NULL,
    last_seq      bigint NOT NULL,
    chain         bytea  NOT NULL,
    text          bytea  NOT NULL,
    tokens        bigint NOT NULL,
    source_tokens bigint NOT NULL,
    at            double precision NOT NULL,
    task          bytea,
    suggestion    bytea,
    title         bytea,
    kind          text   NOT NULL,
    model         bytea  NOT NULL,
    parts         bytea,           -- JSON of what an entry of a shared log covers, thread by thread
    sources       text,            -- JSON array of the ids a reflection was made from
    depth         bigint NOT NULL, -- how often its words have been condensed
    replaces      bigint,          -- id of the entry with the text before; 0: not kept under an id; NULL: as the model wrote it
    PRIMARY KEY (thread_id, id)
);
CREATE INDEX observation_chunk ON om.observation (thread_id, last_seq, id) WHERE state = 'chunk';

-- Generations share their entries: one row per place in a log.
CREATE TABLE om.entry (
    thread_id      bigint NOT NULL,
    generation     bigint NOT NULL,
    position       bigint NOT NULL,
    observation_id bigint NOT NULL,
    PRIMARY KEY (thread_id, generation, position)
);
CREATE INDEX entry_observation ON om.entry (thread_id, observation_id);

CREATE TABLE om.generation (
    thread_id bigint NOT NULL,
    number    bigint NOT NULL,
    why       text   NOT NULL,
    at        double precision NOT NULL,
    PRIMARY KEY (thread_id, number)
);

CREATE TABLE om.reflection (
    thread_id     bigint PRIMARY KEY,
    v             bigint NOT NULL, -- the version that wrote the row
    generation    bigint NOT NULL,
    sources       text   NOT NULL, -- JSON array of observation ids
    text          bytea  NOT NULL,
    tokens        bigint NOT NULL,
    source_tokens bigint NOT NULL,
    at            double precision NOT NULL,
    task          bytea,
    suggestion    bytea,
    model         bytea  NOT NULL
);

-- What happened to memories. The id is the number of the transaction that wrote the event, and the event's place in it: a reader
-- leaves out what may still be joined by a smaller id, see storage/postgres/events.py.
CREATE TABLE om.event (
    id        bigint PRIMARY KEY,
    number    bigint NOT NULL, -- counts events, to know when there are too many
    tenant    text COLLATE "C" NOT NULL,
    thread_id bigint,          -- NULL: of a thread that is forgotten
    at        double precision NOT NULL,
    type      text   NOT NULL,
    data      text   NOT NULL  -- JSON in ASCII, as it is sent
);
CREATE INDEX event_thread ON om.event (thread_id, id);
CREATE SEQUENCE om.event_number;

CREATE TABLE om.event_mark (
    id         smallint PRIMARY KEY CHECK (id = 1),
    pruned     bigint NOT NULL, -- events up to this id may be gone because of their number or age
    newest     bigint NOT NULL, -- the newest event that readers may know and that went with its thread
    xid_offset bigint NOT NULL  -- added to numbers of transactions: those of a restored database begin anew
);
INSERT INTO om.event_mark VALUES (1, 0, 0, 0);

CREATE TABLE om.webhook (
    name     text   PRIMARY KEY, -- a hash of its address
    cursor   bigint NOT NULL,    -- id of the last event that its receiver took
    failures bigint NOT NULL,    -- in a row
    cause    text   NOT NULL,    -- of the last failure: our words
    at       double precision NOT NULL
);

-- Who changed what, and what was forgotten: without names of threads, without texts.
CREATE TABLE om.audit (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at     double precision NOT NULL,
    who    text NOT NULL, -- admin, cli, or a keyed digest of a credential
    tenant text COLLATE "C" NOT NULL,
    what   text NOT NULL,
    label  text NOT NULL,
    counts text NOT NULL  -- JSON object
);
CREATE INDEX audit_of_tenant ON om.audit (tenant, id);
CREATE INDEX audit_at ON om.audit (at);
CREATE FUNCTION om.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a record of the audit is never changed';
END $$;
-- a record goes to another tenant with the threads that it is about
CREATE TRIGGER audit_is_not_changed BEFORE UPDATE OF id, at, who, what, counts ON om.audit FOR EACH ROW EXECUTE FUNCTION om.refuse_change();

CREATE TABLE om.receipt (
    id     text PRIMARY KEY,
    at     double precision NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    scope  text NOT NULL,
    label  text NOT NULL,
    result text NOT NULL -- JSON array: the counts and states of what was forgotten
);
CREATE INDEX receipt_at ON om.receipt (at);

-- What model calls cost, and would have cost without memory: sums by day. Costs are micro-dollars.
-- A resource has a line of its own while it has a thread; what is forgotten stands under ''.
CREATE TABLE om.ledger (
    tenant               text COLLATE "C" NOT NULL,
    day                  bigint NOT NULL, -- since 1970-01-01, in UTC
    resource             text COLLATE "C" NOT NULL,
    model                bytea  NOT NULL,
    who                  text COLLATE "C" NOT NULL, -- actor, observer or reflector
    history              text COLLATE "C" NOT NULL, -- full or partial: what the client sends
    calls                bigint NOT NULL,
    input                bigint NOT NULL,
    cached               bigint NOT NULL,
    cache_write          bigint NOT NULL,
    output               bigint NOT NULL,
    cost                 bigint NOT NULL,
    baseline_input       bigint NOT NULL,
    baseline_cached      bigint NOT NULL,
    baseline_cache_write bigint NOT NULL,
    baseline_cost        bigint NOT NULL,
    estimated            bigint NOT NULL,
    unpriced             bigint NOT NULL,
    shadow_calls         bigint NOT NULL,
    shadow_received      bigint NOT NULL,
    shadow_sent          bigint NOT NULL,
    shadow_baseline_cost bigint NOT NULL,
    shadow_cost          bigint NOT NULL,
    PRIMARY KEY (tenant, resource, day, model, who, history)
);
CREATE INDEX ledger_day ON om.ledger (day);
-- The newest batch of lines that each process has added: a batch that is sent twice is added once.
CREATE TABLE om.ledger_writer (
    writer text PRIMARY KEY,
    batch  bigint NOT NULL,
    at     double precision NOT NULL
);
