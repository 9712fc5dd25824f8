-- When the messages were said of which om.read_memory returns marks, in its order (0011_reading.sql). Older programs go on with that one.
CREATE FUNCTION om.read_times(of_thread bigint, of_coverage bigint) RETURNS double precision[]
LANGUAGE plpgsql STABLE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
BEGIN
    RETURN ARRAY (SELECT at FROM om.message
        WHERE thread_id = of_thread AND live = 1 AND seq <= of_coverage ORDER BY seq DESC LIMIT 256);
END
$$;
