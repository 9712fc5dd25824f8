-- A vector for each indexed message (docs/spec/recall.md#vectors), of its first passage. It is empty while `retrieval.vector` is off.
CREATE TABLE passage_vector (
    passage_id INTEGER PRIMARY KEY REFERENCES passage (id) ON DELETE CASCADE,
    model      TEXT NOT NULL, -- as `retrieval.embedding_model` names it
    vector     BLOB NOT NULL  -- 2 bytes a number; empty: the model refused this message
) STRICT;
