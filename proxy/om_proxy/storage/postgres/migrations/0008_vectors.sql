-- A vector for each indexed message (docs/spec/recall.md#vectors), of its first passage. It is empty while `retrieval.vector` is off.
CREATE TABLE om.passage_vector (
    passage_id bigint PRIMARY KEY REFERENCES om.passage (id) ON DELETE CASCADE,
    model      text  NOT NULL, -- as `retrieval.embedding_model` names it
    vector     bytea NOT NULL  -- 2 bytes a number; empty: the model refused this message
);
-- no compression finds anything in it, and ANALYZE copies nothing of it
ALTER TABLE om.passage_vector ALTER vector SET STORAGE EXTERNAL, ALTER vector SET STATISTICS 0;
