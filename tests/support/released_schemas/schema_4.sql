PRAGMA auto_vacuum = 2;
PRAGMA application_id = 1701070965;
PRAGMA user_version = 4;
BEGIN TRANSACTION;
CREATE TABLE affinity (
  device_id TEXT    PRIMARY KEY,
  ownership TEXT    NOT NULL,
  epoch     INTEGER NOT NULL               -- number of the election; 0 = of none
) STRICT, WITHOUT ROWID;
CREATE TABLE affinity_ledger (
  number    INTEGER PRIMARY KEY,           -- order of the changes
  device_id TEXT    NOT NULL,
  at_ms     INTEGER NOT NULL,              -- hub time
  ownership TEXT    NOT NULL,
  former    TEXT    NOT NULL,              -- ownership before
  cause     TEXT    NOT NULL,
  other     TEXT    NOT NULL,              -- the other hub, empty = none
  epoch     INTEGER NOT NULL
) STRICT;
CREATE TABLE body (
  id     INTEGER PRIMARY KEY,              -- offset of the message's first row
  refs   INTEGER NOT NULL,                 -- rows that refer to it
  header BLOB    NOT NULL,
  body   BLOB    NOT NULL
) STRICT;
INSERT INTO "body" VALUES(5,2,X'5B226465762D31222C6E756C6C2C315D',X'626F64792D34');
CREATE TABLE boot (
  seq           INTEGER PRIMARY KEY,       -- order of boots
  boot_id       TEXT    NOT NULL,          -- the kernel's name of the boot
  first_hub_ms  INTEGER NOT NULL,          -- hub time when the hub first ran in this boot
  first_wall_ms INTEGER NOT NULL,          -- UTC at that moment, as the machine believed
  boottime_ms   INTEGER NOT NULL,          -- CLOCK_BOOTTIME at the last commit
  hub_ms        INTEGER NOT NULL,          -- hub time at the last commit
  wall_ms       INTEGER NOT NULL,          -- UTC at the last commit, right or as the machine believed
  high_water    INTEGER NOT NULL,          -- no offset above it was handed out before that commit
  wall_trusted  INTEGER NOT NULL,          -- 1 = wall_ms is known to be right
  first_offset  INTEGER NOT NULL           -- rows of this boot have it or higher ones; first of a zone
) STRICT;
INSERT INTO "boot" VALUES(1,'boot-1',8796093022208,1700000000000,1000000,8796093022208,1700000000000,8,1,1);
CREATE TABLE client_twin (
  client_id TEXT PRIMARY KEY,              -- <device> or <device>/<module>
  document  BLOB NOT NULL                  -- JSON object
) STRICT;
CREATE TABLE dead_letter (
  id          INTEGER PRIMARY KEY,         -- order of arrival
  size        INTEGER NOT NULL,
  dead_ms     INTEGER NOT NULL,            -- hub time
  endpoint_id TEXT    NOT NULL,
  priority    INTEGER NOT NULL,
  kind        TEXT    NOT NULL,            -- failure kind
  reason      TEXT    NOT NULL,
  offset      INTEGER NOT NULL,
  enqueued_ms INTEGER NOT NULL,
  expires_ms  INTEGER,
  attempts    INTEGER NOT NULL,
  message_id  TEXT    NOT NULL,
  predecessor INTEGER,                     -- as in the queue
  creation    INTEGER,                     -- likewise
  routes      ANY     NOT NULL,
  header      BLOB    NOT NULL,
  body        BLOB    NOT NULL
) STRICT;
INSERT INTO "dead_letter" VALUES(1,88,8796093022208,'upstream',2,'rejected','no',1,8796093022208,NULL,0,'vjvq3pbebe7x-1',NULL,NULL,2,X'5B226465762D31222C6E756C6C2C315D',X'626F64792D30');
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
INSERT INTO "device_message" VALUES(7,'d/m',2,'api',1,2,3,NULL,X'5B226D2D31222C7B2261223A6E756C6C7D2C7B22636964223A2263227D5D',X'646F776E');
CREATE TABLE entity (
  topic_id TEXT PRIMARY KEY,
  document BLOB NOT NULL                   -- JSON object
) STRICT, WITHOUT ROWID;
CREATE TABLE journal (
  number INTEGER PRIMARY KEY,              -- of the commit, rising, never used twice
  events BLOB NOT NULL
) STRICT;
CREATE TABLE label (
  id   INTEGER PRIMARY KEY,
  text TEXT NOT NULL
) STRICT;
INSERT INTO "label" VALUES(1,'/messages/');
INSERT INTO "label" VALUES(2,'["route"]');
CREATE TABLE local_message (
  id         INTEGER PRIMARY KEY,          -- order of arrival
  topic      TEXT    NOT NULL,
  publisher  TEXT    NOT NULL,
  expires_ms INTEGER,
  properties BLOB    NOT NULL,
  body       BLOB    NOT NULL
) STRICT;
INSERT INTO "local_message" VALUES(1,'a/b','other',NULL,X'',X'7761697473');
CREATE TABLE local_queue (
  client_id TEXT    NOT NULL,
  id        INTEGER NOT NULL,
  retain    INTEGER NOT NULL,              -- retain flag that the client is to see
  sent      INTEGER NOT NULL, qos INTEGER NOT NULL DEFAULT 1, packet_id INTEGER NOT NULL DEFAULT 0, received INTEGER NOT NULL DEFAULT 0, identifiers BLOB NOT NULL DEFAULT x'',              -- 1 = it was on its way when it was stored
  PRIMARY KEY (client_id, id)
) STRICT, WITHOUT ROWID;
INSERT INTO "local_queue" VALUES('client',1,0,1,2,9,0,X'');
CREATE TABLE mapper_state (
  key   TEXT PRIMARY KEY,
  value BLOB NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE meta (
  key   TEXT PRIMARY KEY,
  value ANY NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO "meta" VALUES('store_id','vjvq3pbebe7x');
CREATE TABLE pending (
  seq       INTEGER PRIMARY KEY,           -- order of arrival
  topic     TEXT    NOT NULL,
  payload   BLOB    NOT NULL,
  client_id TEXT    NOT NULL,              -- who sent it
  hub_ms    INTEGER NOT NULL,              -- hub time of its arrival
  wall_ms   INTEGER NOT NULL               -- UTC of its arrival
) STRICT;
CREATE TABLE q_1 (
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
INSERT INTO "q_1" VALUES(2,8796093022208,NULL,86,1,NULL,NULL,NULL,NULL,2,NULL,NULL,X'5B226465762D31222C6E756C6C2C315D',X'626F64792D31');
INSERT INTO "q_1" VALUES(3,8796093022208,NULL,86,0,NULL,NULL,NULL,NULL,2,NULL,NULL,X'5B226465762D31222C6E756C6C2C315D',X'626F64792D32');
INSERT INTO "q_1" VALUES(5,8796093022208,NULL,86,0,NULL,NULL,NULL,NULL,2,NULL,5,NULL,NULL);
INSERT INTO "q_1" VALUES(7,8796093022208,NULL,86,0,NULL,NULL,NULL,1,2,NULL,NULL,X'5B226465762D31222C6E756C6C2C315D',X'626F64792D35');
INSERT INTO "q_1" VALUES(8,8796093022208,NULL,86,0,NULL,NULL,7,NULL,2,NULL,NULL,X'5B226465762D31222C6E756C6C2C315D',X'626F64792D36');
CREATE TABLE q_2 (
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
INSERT INTO "q_2" VALUES(4,8796093022208,8796093622208,111,0,8796093082208,7,NULL,NULL,2,NULL,NULL,X'5B226465762D31222C6E756C6C2C312C7B226B696E64223A2261222C226E6F6E65223A6E756C6C7D5D',X'626F64792D33');
CREATE TABLE q_3 (
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
INSERT INTO "q_3" VALUES(6,8796093022208,NULL,86,0,NULL,NULL,NULL,NULL,2,NULL,5,NULL,NULL);
CREATE TABLE queue (
  number      INTEGER PRIMARY KEY,
  name        TEXT    NOT NULL,            -- for people: endpoint id, plus _Pri<n> for 0 to 9
  endpoint_id TEXT    NOT NULL,
  priority    INTEGER NOT NULL,
  checkpoint  INTEGER NOT NULL,            -- lowest live offset - 1; the high-water mark when empty
  UNIQUE (endpoint_id, priority)           -- not the name: an input may be called x_Pri3
) STRICT;
INSERT INTO "queue" VALUES(1,'upstream_Pri2','upstream',2,1);
INSERT INTO "queue" VALUES(2,'upstream_Pri0','upstream',0,3);
INSERT INTO "queue" VALUES(3,'lab_Pri7','lab',7,5);
CREATE TABLE received (
  session   INTEGER NOT NULL,              -- its number
  packet_id INTEGER NOT NULL,
  PRIMARY KEY (session, packet_id)
) STRICT, WITHOUT ROWID;
INSERT INTO "received" VALUES(3,7);
CREATE TABLE retained (
  topic      TEXT    PRIMARY KEY,
  qos        INTEGER NOT NULL,
  publisher  TEXT    NOT NULL,             -- client id, or the hub's own
  expires_ms INTEGER,                      -- hub time; NULL = never
  properties BLOB    NOT NULL,             -- property block of MQTT 5 as it is passed on
  body       BLOB    NOT NULL
) STRICT;
CREATE TABLE session (
  client_id     TEXT PRIMARY KEY,
  subscriptions BLOB NOT NULL,             -- JSON object: topic filter -> options, granted QoS
  expiry_s      INTEGER,                   -- lasts so long without its client; NULL = for ever
  expires_ms    INTEGER                    -- hub time at which its client left, plus expiry_s; NULL = it is connected
, number INTEGER NOT NULL DEFAULT 0) STRICT, WITHOUT ROWID;
INSERT INTO "session" VALUES('client',X'7B22612F23223A317D',3600,8796096622208,3);
CREATE TABLE stored_frame (
  number      INTEGER PRIMARY KEY,         -- order
  device_id   TEXT    NOT NULL UNIQUE,
  session     TEXT    NOT NULL,
  generation  INTEGER NOT NULL,
  f_cnt       INTEGER NOT NULL,
  saved_f_cnt INTEGER NOT NULL,            -- what the device's source had then
  key         TEXT    NOT NULL,
  at_ms       INTEGER NOT NULL             -- hub time
) STRICT;
INSERT INTO "stored_frame" VALUES(1,'d','s',1,9,0,'c71c3e57d858543b15064b65d8c7e8c8',8796093022208);
CREATE TABLE suspect (
  offset  INTEGER PRIMARY KEY,
  closes  INTEGER NOT NULL,                -- closes of that kind
  alone   INTEGER NOT NULL,                -- those with the row alone in flight
  cleared INTEGER NOT NULL                 -- 1 = a connection without it has confirmed another row
) STRICT;
CREATE TABLE twin (
  topic_id TEXT NOT NULL,
  key      TEXT NOT NULL,
  value    BLOB NOT NULL,                  -- canonical JSON
  PRIMARY KEY (topic_id, key)
) STRICT, WITHOUT ROWID;
CREATE TABLE zone (
  queue          INTEGER NOT NULL,
  zone           INTEGER NOT NULL,         -- offset / 1000
  min_expires_ms INTEGER NOT NULL,         -- hub time; 2^62 = never
  max_expires_ms INTEGER NOT NULL,
  fresh_until_ms INTEGER NOT NULL,         -- latest end of freshness; 2^62 = a row without recency
  rows           INTEGER NOT NULL,
  bytes          INTEGER NOT NULL,
  stale_from_ms  INTEGER NOT NULL,         -- earliest end of freshness; 2^62 = no recency at all
  PRIMARY KEY (queue, zone)
) STRICT, WITHOUT ROWID;
INSERT INTO "zone" VALUES(1,0,4611686018427387904,4611686018427387904,4611686018427387904,5,430,4611686018427387904);
INSERT INTO "zone" VALUES(2,0,8796093622208,8796093622208,8796093082208,1,111,8796093082208);
INSERT INTO "zone" VALUES(3,0,4611686018427387904,4611686018427387904,4611686018427387904,1,86,4611686018427387904);
CREATE TRIGGER boot_bound AFTER INSERT ON boot BEGIN
  DELETE FROM boot WHERE seq <= new.seq - 1000;
END;
CREATE INDEX affinity_ledger_device ON affinity_ledger (device_id, number);
CREATE TRIGGER affinity_ledger_bound AFTER INSERT ON affinity_ledger BEGIN
  DELETE FROM affinity_ledger WHERE number <= new.number - 10000;
END;
CREATE TRIGGER stored_frame_bound AFTER INSERT ON stored_frame BEGIN
  DELETE FROM stored_frame WHERE number <= new.number - 100000;
END;
CREATE INDEX q_1_creation ON q_1 (size) WHERE creation IS NOT NULL;
CREATE TRIGGER q_1_body AFTER DELETE ON q_1 WHEN old.body_id IS NOT NULL BEGIN
  UPDATE body SET refs = refs - 1 WHERE id = old.body_id;
  DELETE FROM body WHERE id = old.body_id AND refs <= 0;
END;
CREATE INDEX q_2_creation ON q_2 (size) WHERE creation IS NOT NULL;
CREATE TRIGGER q_2_body AFTER DELETE ON q_2 WHEN old.body_id IS NOT NULL BEGIN
  UPDATE body SET refs = refs - 1 WHERE id = old.body_id;
  DELETE FROM body WHERE id = old.body_id AND refs <= 0;
END;
CREATE INDEX q_3_creation ON q_3 (size) WHERE creation IS NOT NULL;
CREATE TRIGGER q_3_body AFTER DELETE ON q_3 WHEN old.body_id IS NOT NULL BEGIN
  UPDATE body SET refs = refs - 1 WHERE id = old.body_id;
  DELETE FROM body WHERE id = old.body_id AND refs <= 0;
END;
COMMIT;
