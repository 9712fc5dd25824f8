-- The state knows which of its log's tokens the reflector wrote: sums over the store read no notes.

UPDATE thread SET state = CAST(json_set(CAST(state AS TEXT), '$.reflected_tokens', (SELECT ifnull(sum(observation.tokens), 0) FROM entry
    JOIN observation ON observation.thread_id = entry.thread_id AND observation.id = observation_id
    WHERE entry.thread_id = thread.id AND entry.generation = thread.generation AND kind = 'reflection')) AS BLOB) WHERE generation > 0;
