-- First schema of queue.db (user_version 1). Forward-only: later versions are added beside this
-- file and run after it; a released file is never edited.

-- Facts about the file itself. `store_id` is random per file, so that message ids (store id and
-- offset) are unique over all hubs and over a file that was made anew.
CREATE TABLE meta (
  key   TEXT PRIMARY KEY,
  value ANY NOT NULL
) STRICT, WITHOUT ROWID;

-- One row per boot of the machine (per start of the hub, where times to live pause while it is
-- off); the newest is rewritten by every commit. Rows hold hub time; this table maps hub time to
-- UTC, so that times can be corrected when the wall clock was wrong.
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

CREATE TRIGGER boot_bound AFTER INSERT ON boot BEGIN
  DELETE FROM boot WHERE seq <= new.seq - 1000;
END;

-- Texts that many rows repeat (sources, lists of route names); rows hold the number instead.
CREATE TABLE label (
  id   INTEGER PRIMARY KEY,
  text TEXT NOT NULL
) STRICT;

-- Registry of queues. The rows of queue <number> are in table q_<number>.
CREATE TABLE queue (
  number      INTEGER PRIMARY KEY,
  name        TEXT    NOT NULL,            -- for people: endpoint id, plus _Pri<n> for 0 to 9
  endpoint_id TEXT    NOT NULL,
  priority    INTEGER NOT NULL,
  checkpoint  INTEGER NOT NULL,            -- lowest live offset - 1; the high-water mark when empty
  UNIQUE (endpoint_id, priority)           -- not the name: an input may be called x_Pri3
) STRICT;

-- Messages that wait in several queues: once here, however many rows refer to it.
CREATE TABLE body (
  id     INTEGER PRIMARY KEY,              -- offset of the message's first row
  refs   INTEGER NOT NULL,                 -- rows that refer to it
  header BLOB    NOT NULL,
  body   BLOB    NOT NULL
) STRICT;

-- Per queue one row for each 1000 offsets that hold rows. Expiries only widen while rows join;
-- a clean-up that has read the whole zone may tighten min_expires_ms.
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

-- Rows that will never be sent, with the reason; bounded, the oldest leave first.
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

-- Rows that were the oldest unconfirmed one when the peer closed the connection; at most 256.
CREATE TABLE suspect (
  offset  INTEGER PRIMARY KEY,
  closes  INTEGER NOT NULL,                -- closes of that kind
  alone   INTEGER NOT NULL,                -- those with the row alone in flight
  cleared INTEGER NOT NULL                 -- 1 = a connection without it has confirmed another row
) STRICT;

-- Events of rows on their way to the journal: one blob per commit that has any, written by that
-- commit, deleted once its lines are in a segment. See edgehub/journal/row_events.py.
CREATE TABLE journal (
  number INTEGER PRIMARY KEY,              -- of the commit, rising, never used twice
  events BLOB NOT NULL
) STRICT;

-- MQTT sessions that outlive their connection.
CREATE TABLE session (
  client_id     TEXT PRIMARY KEY,
  subscriptions BLOB NOT NULL,             -- JSON object: topic filter -> options, granted QoS
  expiry_s      INTEGER,                   -- lasts so long without its client; NULL = for ever
  expires_ms    INTEGER                    -- hub time at which its client left, plus expiry_s; NULL = it is connected
) STRICT, WITHOUT ROWID;

-- The last message of each topic of the local topic space that was published to be kept.
CREATE TABLE retained (
  topic      TEXT    PRIMARY KEY,
  qos        INTEGER NOT NULL,
  publisher  TEXT    NOT NULL,             -- client id, or the hub's own
  expires_ms INTEGER,                      -- hub time; NULL = never
  properties BLOB    NOT NULL,             -- property block of MQTT 5 as it is passed on
  body       BLOB    NOT NULL
) STRICT;

-- Messages of the local topic space that wait for stored sessions: once, however many wait.
CREATE TABLE local_message (
  id         INTEGER PRIMARY KEY,          -- order of arrival
  topic      TEXT    NOT NULL,
  publisher  TEXT    NOT NULL,
  expires_ms INTEGER,
  properties BLOB    NOT NULL,
  body       BLOB    NOT NULL
) STRICT;

-- Which session waits for which of them.
CREATE TABLE local_queue (
  client_id TEXT    NOT NULL,
  id        INTEGER NOT NULL,
  retain    INTEGER NOT NULL,              -- retain flag that the client is to see
  sent      INTEGER NOT NULL,              -- 1 = it was on its way when it was stored
  PRIMARY KEY (client_id, id)
) STRICT, WITHOUT ROWID;

-- Registered entities. What the documents and values of these four tables mean is described in
-- edgehub/entities/.
CREATE TABLE entity (
  topic_id TEXT PRIMARY KEY,
  document BLOB NOT NULL                   -- JSON object
) STRICT, WITHOUT ROWID;

-- Known digital-twin values, the main device's among them.
CREATE TABLE twin (
  topic_id TEXT NOT NULL,
  key      TEXT NOT NULL,
  value    BLOB NOT NULL,                  -- canonical JSON
  PRIMARY KEY (topic_id, key)
) STRICT, WITHOUT ROWID;

-- Messages that are held until their entity is registered.
CREATE TABLE pending (
  seq       INTEGER PRIMARY KEY,           -- order of arrival
  topic     TEXT    NOT NULL,
  payload   BLOB    NOT NULL,
  client_id TEXT    NOT NULL,              -- who sent it
  hub_ms    INTEGER NOT NULL,              -- hub time of its arrival
  wall_ms   INTEGER NOT NULL               -- UTC of its arrival
) STRICT;

-- What else the mapper remembers: live alarms, declared operations, commands, units.
CREATE TABLE mapper_state (
  key   TEXT PRIMARY KEY,
  value BLOB NOT NULL
) STRICT, WITHOUT ROWID;

-- Which hub speaks for each device that several hear, as this hub knows it. What the words mean is
-- described in edgehub/devices/affinity/. How far the notices were read stands in meta.
CREATE TABLE affinity (
  device_id TEXT    PRIMARY KEY,
  ownership TEXT    NOT NULL,
  epoch     INTEGER NOT NULL               -- number of the election; 0 = of none
) STRICT, WITHOUT ROWID;

-- What changed about that, and why; bounded, the oldest leave first.
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

CREATE INDEX affinity_ledger_device ON affinity_ledger (device_id, number);

CREATE TRIGGER affinity_ledger_bound AFTER INSERT ON affinity_ledger BEGIN
  DELETE FROM affinity_ledger WHERE number <= new.number - 10000;
END;
