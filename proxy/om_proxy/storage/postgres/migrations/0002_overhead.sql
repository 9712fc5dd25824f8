ALTER TABLE om.ledger ADD COLUMN overhead_us bigint NOT NULL DEFAULT 0, ADD COLUMN degraded bigint NOT NULL DEFAULT 0;
