-- The index of original messages (docs/spec/recall.md). It is empty while `memory.retrieval` is off, and no turn writes it.
--
-- Each scope, the resource of a tenant, has posting lists of its own: its number and a `z` stand before each word in `posted`. So a
-- search reads nothing of other tenants, and costs what its own resource costs.

CREATE TABLE om.search_scope (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, -- never reused
    tenant   text COLLATE "C" NOT NULL,
    resource text COLLATE "C" NOT NULL,
    UNIQUE (tenant, resource)
);

CREATE TABLE om.indexed_thread (
    thread_id  bigint PRIMARY KEY,
    scope      bigint NOT NULL,
    rules      bigint NOT NULL, -- INDEX_VERSION of the passages up to indexed_to
    indexed_to bigint NOT NULL, -- seq
    remade_to  bigint NOT NULL  -- seq up to which passages are of newer rules already; 0: none
);
CREATE INDEX indexed_thread_scope ON om.indexed_thread (scope);

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
    posted     text[] NOT NULL, -- the set of both, each with its scope before it
    UNIQUE (thread_id, seq, place)
);
CREATE INDEX passage_scope ON om.passage (scope) WHERE place = 0;
CREATE INDEX passage_position ON om.passage (thread_id, position) WHERE place = 0;
CREATE INDEX passage_posted ON om.passage USING gin (posted) WITH (fastupdate = off);

-- ANALYZE copies no words and no names.
ALTER TABLE om.search_scope ALTER resource SET STATISTICS 0;
ALTER TABLE om.passage ALTER role SET STATISTICS 0, ALTER words SET STATISTICS 0, ALTER side_words SET STATISTICS 0,
    ALTER posted SET STATISTICS 0;

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
