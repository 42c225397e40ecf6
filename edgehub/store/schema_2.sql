-- Second schema of queue.db: QoS 2 and subscription identifiers.

-- Number of the session, never used twice: what `received` holds is of that session and not of
-- one that its client had before.
ALTER TABLE session ADD COLUMN number INTEGER NOT NULL DEFAULT 0;
UPDATE session SET number = numbered.number FROM (
  SELECT client_id AS id, row_number() OVER (ORDER BY client_id) AS number FROM session
) AS numbered WHERE numbered.id = session.client_id;

-- Packet ids that clients with a stored session sent with QoS 2 and have not released.
CREATE TABLE received (
  session   INTEGER NOT NULL,              -- its number
  packet_id INTEGER NOT NULL,
  PRIMARY KEY (session, packet_id)
) STRICT, WITHOUT ROWID;

ALTER TABLE local_queue ADD COLUMN qos INTEGER NOT NULL DEFAULT 1;
ALTER TABLE local_queue ADD COLUMN packet_id INTEGER NOT NULL DEFAULT 0;   -- QoS 2: under which it is sent; 0 = not known
ALTER TABLE local_queue ADD COLUMN received INTEGER NOT NULL DEFAULT 0;    -- QoS 2: 1 = PUBREC came, PUBREL is left
ALTER TABLE local_queue ADD COLUMN identifiers BLOB NOT NULL DEFAULT x'';  -- subscription identifiers as they are written
