-- What the model looked up for a reply, for later prompts; mostly NULL.

ALTER TABLE om.message ADD COLUMN look_ups bytea;
ALTER TABLE om.message ALTER look_ups SET STATISTICS 0;
