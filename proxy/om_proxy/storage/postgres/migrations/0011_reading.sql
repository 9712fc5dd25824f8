-- What is read of a memory beside its own row (postgres/queries.py).
--
-- PostgreSQL prepares each subselect of a statement every time, also those that it then does not need. What stands in a function is
-- prepared when the function is called: a process that asks whether anything has come mostly finds nothing. And it would plan such a
-- statement anew each time, as it takes a plan for any thread for a dearer one; that takes longer than the reading. Each table here is
-- read by an index, whatever stands in it.
--
-- STABLE: a function reads in the snapshot of the statement that calls it. Programs decode the columns by their places, and older
-- programs go on with these functions: others need other names.

CREATE FUNCTION om.read_memory(of_thread bigint, of_generation bigint, of_coverage bigint) RETURNS record
LANGUAGE plpgsql STABLE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    found record;
BEGIN
    SELECT
        (SELECT ROW (array_agg(seq), array_agg(fp), array_agg(chain), array_agg(role), array_agg(calls), array_agg(answers),
                array_agg(tokens)) FROM (
            SELECT seq, fp, chain, role, calls, answers, tokens FROM om.message
            WHERE thread_id = of_thread AND live = 1 AND seq <= of_coverage ORDER BY seq DESC LIMIT 256) AS newest_first),
        ARRAY (SELECT ROW (seq, fp, chain, role, calls, answers, tokens, at, encoding, raw, look_ups) FROM om.message
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
                CASE WHEN live = 1 THEN look_ups END) FROM om.message
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
