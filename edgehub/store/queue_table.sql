-- Rows of one queue, made when the queue gets its first row. {number} is filled in.
-- What clean-up looks at stands first, so that it need not touch the pages of large bodies.
CREATE TABLE q_{number} (
  offset         INTEGER PRIMARY KEY,      -- given by the hub, never used twice
  enqueued_ms    INTEGER NOT NULL,         -- hub time
  expires_ms     INTEGER,                  -- hub time as resolved at enqueue; NULL = never
  size           INTEGER NOT NULL,         -- bytes it counts
  attempts       INTEGER NOT NULL DEFAULT 0,
  fresh_until_ms INTEGER,                  -- recency: hub time at which it becomes stale; NULL = none
  fallback       INTEGER,                  -- recency: priority of the stale row
  predecessor    INTEGER,                  -- offset that must be confirmed first; NULL = none
  creation       INTEGER,                  -- 1 = creates an entity: never gives way; NULL = does not
  routes         ANY NOT NULL,             -- label, or JSON list of route names, the winner first
  message_id     TEXT,                     -- NULL = store id and offset (of the body, when shared)
  body_id        INTEGER,                  -- shared message; NULL = header and body stand here
  header         BLOB,                     -- JSON: device, module, source, properties, system
  body           BLOB
) STRICT;

-- How many creation rows there are is known at start without a look at the others.
CREATE INDEX q_{number}_creation ON q_{number} (size) WHERE creation IS NOT NULL;

-- Whatever deletes a row gives its share of the body back, in the same transaction.
CREATE TRIGGER q_{number}_body AFTER DELETE ON q_{number} WHEN old.body_id IS NOT NULL BEGIN
  UPDATE body SET refs = refs - 1 WHERE id = old.body_id;
  DELETE FROM body WHERE id = old.body_id AND refs <= 0;
END;
