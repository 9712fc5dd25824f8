-- Records of the audit go to another tenant with the threads that they are about; nothing else of them changes. Lines of the ledger
-- are removed by their age.

DROP TRIGGER audit_is_not_changed;
CREATE TRIGGER audit_is_not_changed BEFORE UPDATE OF id, at, who, what, counts ON audit BEGIN
    SELECT RAISE(ABORT, 'a record of the audit is never changed');
END;
CREATE INDEX ledger_day ON ledger (day);
