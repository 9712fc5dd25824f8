-- Memories in a schema of their own: `om` stands for the name that `storage.prefix` gives it.
--
-- Names are text in the order of code points. Every text that came from outside is bytea, UTF-8 with surrogates passed: text refuses
-- NUL and lone surrogates. Times are unix seconds. No foreign keys: rows of a thread are written with its own row locked, and
-- forgetting removes them by name; a check for each message would cost a third of a turn.
--
-- ANALYZE copies values into pg_statistic, where forgetting does not reach. So it keeps no statistics (`SET STATISTICS 0`) of columns
-- with words, names or what is computed from them.

-- Which programs may use the schema: a program is named by the newest migration that it knows. A migration that older programs cannot
-- work with raises the last two.
CREATE TABLE om.schema (
    id         smallint PRIMARY KEY CHECK (id = 1),
    version    integer  NOT NULL, -- the newest migration that was applied
    min_reader integer  NOT NULL, -- the oldest program that may read
    min_writer integer  NOT NULL  -- the oldest program that may write
);
INSERT INTO om.schema VALUES (1, 1, 1, 1);

-- Versions and ids of threads: not from a row, which would queue every commit behind the fsync of every other.
CREATE SEQUENCE om.version;

-- What tenants and fingerprints are keyed with; made by the first process that asks.
CREATE TABLE om.secret (
    id    smallint PRIMARY KEY CHECK (id = 1),
    value bytea    NOT NULL
);
ALTER TABLE om.secret ALTER value SET STATISTICS 0;

-- ── a thread's memory: its row, its messages, its notes ──

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
    active_slot      double precision GENERATED ALWAYS AS (floor(coalesce(turn_at, created_at) / 600)) STORED, -- ten minutes
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
    key_id           bytea,            -- of its data key; NULL: its text is not encrypted
    UNIQUE (tenant, resource, thread)
) WITH (fillfactor = 70);
ALTER TABLE om.thread ALTER resource SET STATISTICS 0, ALTER thread SET STATISTICS 0, ALTER model SET STATISTICS 0,
    ALTER title SET STATISTICS 0, ALTER others SET STATISTICS 0, ALTER state SET STATISTICS 0, ALTER key_id SET STATISTICS 0;
CREATE INDEX thread_due ON om.thread (tenant, due, id) WHERE due IS NOT NULL;
CREATE INDEX thread_shared ON om.thread (tenant, resource) WHERE shared;
-- No index has a column that most turns change: such a turn leaves its new row in the page of the old one, and writes no index at all.
CREATE INDEX thread_recent ON om.thread (tenant, active_slot) WHERE thread <> '';
CREATE INDEX thread_recent_of_all ON om.thread (active_slot) WHERE thread <> '';
CREATE INDEX thread_name ON om.thread (tenant, thread);
CREATE INDEX thread_title ON om.thread (tenant, title) WHERE has_plain_title;
CREATE INDEX thread_failing ON om.thread (tenant) WHERE failures > 0 AND NOT parked;
CREATE INDEX thread_parked ON om.thread (tenant) WHERE parked;
-- Whether any row names a key. What a prompt tells of other threads has a key of its own, whose id stands before the text.
CREATE INDEX thread_key ON om.thread (key_id) WHERE key_id IS NOT NULL;
CREATE INDEX thread_key_of_others ON om.thread (substr(others, 1, 16)) WHERE key_id IS NOT NULL AND length(others) > 16;

-- Beside the thread, not in it: a lease may precede the first commit, and taking one rewrites no big row.
CREATE TABLE om.lease (
    tenant   text COLLATE "C" NOT NULL,
    resource text COLLATE "C" NOT NULL,
    thread   text COLLATE "C" NOT NULL,
    holder   text NOT NULL,
    until    double precision NOT NULL, -- by this server's clock
    PRIMARY KEY (tenant, resource, thread)
);
ALTER TABLE om.lease ALTER resource SET STATISTICS 0, ALTER thread SET STATISTICS 0;

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
    look_ups  bytea,             -- what the model looked up for a reply, for later prompts; mostly NULL
    api       text,              -- whose JSON `raw` is (ApiName of common/apis.py); NULL: of chat
    origin    bytea,             -- MessagePack of a reply's ReplyOrigin (memory/model.py), by which a request may name it; mostly NULL
    PRIMARY KEY (thread_id, seq)
);
ALTER TABLE om.message ALTER fp SET STATISTICS 0, ALTER chain SET STATISTICS 0, ALTER role SET STATISTICS 0,
    ALTER calls SET STATISTICS 0, ALTER answers SET STATISTICS 0, ALTER raw SET STATISTICS 0, ALTER look_ups SET STATISTICS 0,
    ALTER origin SET STATISTICS 0;
-- Forgetting a thread takes what others of its resource looked up, and finds it here.
CREATE INDEX message_look_ups ON om.message (thread_id) WHERE look_ups IS NOT NULL;

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
ALTER TABLE om.observation ALTER chain SET STATISTICS 0, ALTER text SET STATISTICS 0, ALTER task SET STATISTICS 0,
    ALTER suggestion SET STATISTICS 0, ALTER title SET STATISTICS 0, ALTER model SET STATISTICS 0, ALTER parts SET STATISTICS 0;
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

-- Why each generation began; the first one has no row.
CREATE TABLE om.generation (
    thread_id bigint NOT NULL,
    number    bigint NOT NULL,
    why       text   NOT NULL, -- GenerationCause of memory/model.py
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
ALTER TABLE om.reflection ALTER text SET STATISTICS 0, ALTER task SET STATISTICS 0, ALTER suggestion SET STATISTICS 0,
    ALTER model SET STATISTICS 0;

-- ── what is read of a memory beside its own row (postgres/queries.py) ──
--
-- PostgreSQL prepares each subselect of a statement every time, also those that it then does not need. What stands in a function is
-- prepared when the function is called: a process that asks whether anything has come mostly finds nothing. And it would plan such a
-- statement anew each time, as it takes a plan for any thread for a dearer one; that takes longer than the reading. Each table here is
-- read by an index, whatever stands in it.
--
-- STABLE: a function reads in the snapshot of the statement that calls it. Programs decode the columns by their places: a migration that
-- changes them gives the function another name, so that older programs go on with this one.

CREATE FUNCTION om.read_memory(of_thread bigint, of_generation bigint, of_coverage bigint) RETURNS record
LANGUAGE plpgsql STABLE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    found record;
BEGIN
    SELECT
        (SELECT ROW (array_agg(seq), array_agg(fp), array_agg(chain), array_agg(role), array_agg(calls), array_agg(answers),
                array_agg(tokens), array_agg(at)) FROM (
            SELECT seq, fp, chain, role, calls, answers, tokens, at FROM om.message
            WHERE thread_id = of_thread AND live = 1 AND seq <= of_coverage ORDER BY seq DESC LIMIT 256) AS newest_first),
        ARRAY (SELECT ROW (seq, fp, chain, role, calls, answers, tokens, at, encoding, raw, look_ups, api, origin) FROM om.message
            WHERE thread_id = of_thread AND live = 1 AND seq > of_coverage ORDER BY seq),
        -- OFFSET 0: each entry's note is found by both columns of its key; a join may read all notes for each entry
        ARRAY (SELECT note.columns FROM om.entry CROSS JOIN LATERAL (
                SELECT ROW (observation.id, after_seq, last_seq, chain, text, tokens, source_tokens, at, task, suggestion, title, kind,
                    model, parts, sources, depth, replaces) AS columns FROM om.observation
                WHERE observation.thread_id = of_thread AND observation.id = entry.observation_id OFFSET 0) AS note
            WHERE entry.thread_id = of_thread AND entry.generation = of_generation ORDER BY position),
        ARRAY (SELECT ROW (observation.id, after_seq, last_seq, chain, text, tokens, source_tokens, at, task, suggestion, title, kind,
                model, parts, sources, depth, replaces) FROM om.observation
            WHERE thread_id = of_thread AND observation.state = 'chunk' ORDER BY last_seq, observation.id),
        (SELECT ROW (generation, sources, text, tokens, source_tokens, at, task, suggestion, model)
            FROM om.reflection WHERE thread_id = of_thread)
    INTO found;
    RETURN found;
END
$$;

-- What has come since a version that a process holds.
CREATE FUNCTION om.read_changes(of_thread bigint, of_generation bigint, held_version bigint, held_coverage bigint) RETURNS record
LANGUAGE plpgsql STABLE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    found record;
BEGIN
    SELECT
        ARRAY (SELECT ROW (live = 1, seq, fp, chain, role, calls, answers, tokens, at, encoding, CASE WHEN live = 1 THEN raw END,
                CASE WHEN live = 1 THEN look_ups END, api, origin) FROM om.message
            WHERE thread_id = of_thread AND seq > held_coverage AND v > held_version ORDER BY seq),
        ARRAY (SELECT ROW (observation.id, after_seq, last_seq, chain, text, tokens, source_tokens, at, task, suggestion, title, kind,
                model, parts, sources, depth, replaces) FROM om.observation
            WHERE thread_id = of_thread AND v > held_version AND (observation.state = 'chunk' OR observation.id IN (
                SELECT observation_id FROM om.entry WHERE entry.thread_id = of_thread AND entry.generation = of_generation))),
        ARRAY (SELECT observation_id FROM om.entry
            WHERE entry.thread_id = of_thread AND entry.generation = of_generation ORDER BY position),
        ARRAY (SELECT id FROM om.observation
            WHERE thread_id = of_thread AND observation.state = 'chunk' ORDER BY last_seq, id),
        (SELECT ROW (v > held_version, CASE WHEN v > held_version THEN ROW (generation, sources, text, tokens, source_tokens, at, task,
            suggestion, model) END) FROM om.reflection WHERE thread_id = of_thread)
    INTO found;
    RETURN found;
END
$$;

-- ── encryption: each memory has a data key of its own, wrapped by a master key that is not in this database ──

-- A row: memories that begin now are encrypted, and so is the secret.
CREATE TABLE om.encryption (
    id        smallint PRIMARY KEY CHECK (id = 1),
    master    text NOT NULL, -- id of the newest master key
    key_store text           -- id of the key store (storage.keys_url), of which copies of this database know nothing; NULL: the keys are in `data_key`
);

CREATE TABLE om.data_key (
    id      bytea PRIMARY KEY,
    master  text  NOT NULL, -- id of the master key that wraps it
    wrapped bytea NOT NULL
);
ALTER TABLE om.data_key ALTER id SET STATISTICS 0, ALTER wrapped SET STATISTICS 0;

-- A key goes with what it encrypts, whoever removes that.
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

-- Keys to be destroyed in the key store, because the transaction that names them here has removed what they encrypt.
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

-- ── forgetting ──

-- The names of threads, resources and tenants that were asked to be forgotten, also where nothing of them was stored: a turn that began
-- before stores no first row of its thread. A name is its HMAC under the store's secret. Entries go by age and number.
CREATE TABLE om.forgotten_name (
    digest bytea            PRIMARY KEY,
    at     double precision NOT NULL
);
ALTER TABLE om.forgotten_name ALTER digest SET STATISTICS 0;
CREATE INDEX forgotten_name_at ON om.forgotten_name (at);

-- Forgotten bytes leave the files once every table is rewritten (om-proxy store erase --rewrite). Who forgets and who rewrites both take numbers
-- from the sequence of versions, so a receipt with a smaller number than a whole rewrite is of bytes that are gone.
CREATE TABLE om.rewrite (
    name    text   PRIMARY KEY, -- of a table; empty: all of them
    through bigint NOT NULL     -- what was forgotten before this number is not in its files any more
);

-- ── records: what happened, who did it, what it cost ──

-- What happened to memories. The id is the number of the transaction that wrote the event, and the event's place in it: a reader
-- leaves out what may still be joined by a smaller id, see storage/postgres/events.py.
CREATE TABLE om.event (
    id        bigint PRIMARY KEY,
    number    bigint NOT NULL, -- counts events, to know when there are too many
    tenant    text COLLATE "C" NOT NULL,
    thread_id bigint,          -- NULL: of a thread that is forgotten
    at        double precision NOT NULL,
    type      text   NOT NULL,
    data      text   NOT NULL, -- JSON in ASCII, as it is sent
    sealed    bytea            -- JSON of the fields with words of a conversation, encrypted; they are null in `data` then
);
ALTER TABLE om.event ALTER data SET STATISTICS 0, ALTER sealed SET STATISTICS 0;
CREATE INDEX event_thread ON om.event (thread_id, id);
CREATE SEQUENCE om.event_number;

CREATE TABLE om.event_mark (
    id         smallint PRIMARY KEY CHECK (id = 1),
    pruned     bigint NOT NULL, -- events up to this id may be gone because of their number or age
    newest     bigint NOT NULL, -- the newest event that readers may know and that went with its thread
    xid_offset bigint NOT NULL  -- added to numbers of transactions: those of a restored database begin anew
);
INSERT INTO om.event_mark VALUES (1, 0, 0, 0);

-- How far each webhook has got, so that a restart sends nothing again that its receiver has taken.
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
-- A record goes to another tenant with the threads that it is about; nothing else of it changes.
CREATE TRIGGER audit_is_not_changed BEFORE UPDATE OF id, at, who, what, counts ON om.audit FOR EACH ROW EXECUTE FUNCTION om.refuse_change();

CREATE TABLE om.receipt (
    id     text PRIMARY KEY,
    at     double precision NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    scope  text NOT NULL,
    label  text NOT NULL,
    result text NOT NULL, -- JSON array: the counts and states of what was forgotten
    number bigint NOT NULL DEFAULT nextval('om.version') -- see om.rewrite
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
ALTER TABLE om.ledger ALTER resource SET STATISTICS 0;
CREATE INDEX ledger_day ON om.ledger (day);

-- The newest batch of lines that each process has added: a batch that is sent twice is added once.
CREATE TABLE om.ledger_writer (
    writer text PRIMARY KEY,
    batch  bigint NOT NULL,
    at     double precision NOT NULL
);

-- ── the index of original messages (docs/spec/recall.md) ──
--
-- It is empty while `memory.retrieval` is off, and no turn writes it. Each scope, the resource of a tenant, has posting lists of its own:
-- its number and a `z` stand before each word. So a search reads nothing of other tenants, and costs what its own resource costs.

CREATE TABLE om.search_scope (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, -- never reused
    tenant   text COLLATE "C" NOT NULL,
    resource text COLLATE "C" NOT NULL,
    UNIQUE (tenant, resource)
);
ALTER TABLE om.search_scope ALTER resource SET STATISTICS 0;

CREATE TABLE om.indexed_thread (
    thread_id  bigint PRIMARY KEY,
    scope      bigint NOT NULL,
    rules      bigint NOT NULL, -- INDEX_VERSION of the passages up to indexed_to
    indexed_to bigint NOT NULL, -- seq
    remade_to  bigint NOT NULL  -- seq up to which passages are of newer rules already; 0: none
);
CREATE INDEX indexed_thread_scope ON om.indexed_thread (scope);

-- A message's neighbours are found by their `seq`: a second index by `position` would take a tenth of what is indexed of short messages.
CREATE TABLE om.passage (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    scope      bigint NOT NULL,
    thread_id  bigint NOT NULL,
    seq        bigint NOT NULL,
    place      bigint NOT NULL,
    position   bigint NOT NULL,
    visit      bigint NOT NULL,
    role       bytea  NOT NULL,
    at         double precision NOT NULL,
    length     bigint NOT NULL,
    words      text   NOT NULL, -- with a space between
    side_words text   NOT NULL,
    UNIQUE (thread_id, seq, place)
);
ALTER TABLE om.passage ALTER role SET STATISTICS 0, ALTER words SET STATISTICS 0, ALTER side_words SET STATISTICS 0;
CREATE INDEX passage_scope ON om.passage (scope) WHERE place = 0;
-- No row keeps its words a second time, each with its scope before it: the index makes them from what ranking reads.
CREATE INDEX passage_words ON om.passage USING gin (string_to_array(scope::text || 'z'
    || replace(words || ' ' || side_words, ' ', ' ' || scope::text || 'z'), ' ')) WITH (fastupdate = off);
ALTER INDEX om.passage_words ALTER COLUMN 1 SET STATISTICS 0;

-- A vector for each indexed message (docs/spec/recall.md#vectors), of its first passage. It is empty while `retrieval.vector` is off.
CREATE TABLE om.passage_vector (
    passage_id bigint PRIMARY KEY REFERENCES om.passage (id) ON DELETE CASCADE,
    model      text  NOT NULL, -- as `retrieval.embedding_model` names it
    vector     bytea NOT NULL  -- 2 bytes a number; empty: the model refused this message
);
-- no compression finds anything in it, and ANALYZE copies nothing of it
ALTER TABLE om.passage_vector ALTER vector SET STORAGE EXTERNAL, ALTER vector SET STATISTICS 0;

-- The name of a resource goes with its last indexed thread. Who indexes another one at the same time holds the row of the scope.
CREATE FUNCTION om.remove_scope() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM om.search_scope WHERE id = OLD.scope FOR UPDATE;
    DELETE FROM om.search_scope WHERE id = OLD.scope
        AND NOT EXISTS (SELECT FROM om.indexed_thread WHERE indexed_thread.scope = OLD.scope);
    RETURN NULL;
END $$;
CREATE TRIGGER scope_goes AFTER DELETE ON om.indexed_thread FOR EACH ROW EXECUTE FUNCTION om.remove_scope();

CREATE FUNCTION om.remove_passages() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM om.passage WHERE passage.thread_id = OLD.id;
    DELETE FROM om.indexed_thread WHERE indexed_thread.thread_id = OLD.id;
    RETURN NULL;
END $$;
CREATE TRIGGER passages_of_thread_go AFTER DELETE ON om.thread FOR EACH ROW EXECUTE FUNCTION om.remove_passages();
CREATE TRIGGER thread_changes_scope AFTER UPDATE OF tenant, resource ON om.thread FOR EACH ROW
    WHEN (OLD.tenant <> NEW.tenant OR OLD.resource <> NEW.resource) EXECUTE FUNCTION om.remove_passages();

-- What is no longer live, or has another text, is not found any more; what is live again is indexed again. No new message fires this.
CREATE FUNCTION om.remove_passages_from() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE om.indexed_thread SET indexed_to = NEW.seq - 1, remade_to = least(remade_to, NEW.seq - 1)
        WHERE indexed_thread.thread_id = NEW.thread_id AND indexed_to >= NEW.seq;
    DELETE FROM om.passage WHERE passage.thread_id = NEW.thread_id AND passage.seq >= NEW.seq;
    RETURN NULL;
END $$;
CREATE TRIGGER message_changes_state AFTER UPDATE OF live, raw ON om.message FOR EACH ROW
    WHEN (OLD.live <> NEW.live OR OLD.raw <> NEW.raw) EXECUTE FUNCTION om.remove_passages_from();
