-- Third schema of queue.db: messages to devices and modules.

-- They wait here until their client has acknowledged them. What the columns mean is described in
-- edgehub/device_bound/.
CREATE TABLE device_message (
  number      INTEGER PRIMARY KEY,         -- order of arrival
  target      TEXT    NOT NULL,            -- <device> or <device>/<module>
  priority    INTEGER NOT NULL,
  origin      TEXT    NOT NULL,
  enqueued_ms INTEGER NOT NULL,            -- hub time
  expires_ms  INTEGER NOT NULL,            -- hub time
  deliveries  INTEGER NOT NULL,            -- how often it was written to its client
  dead        TEXT,                        -- why it is not sent any more; NULL = it waits
  header      BLOB    NOT NULL,            -- JSON list: id, properties, system properties
  body        BLOB    NOT NULL
) STRICT;

-- Twins of devices and modules. What the documents mean is described in edgehub/twins/document.py.
CREATE TABLE client_twin (
  client_id TEXT PRIMARY KEY,              -- <device> or <device>/<module>
  document  BLOB NOT NULL                  -- JSON object
) STRICT;
