-- What the model looked up for a reply, for later prompts; mostly NULL. Behind `raw`: reading marks never comes there.

ALTER TABLE message ADD COLUMN look_ups BLOB;
