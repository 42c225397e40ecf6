CREATE TABLE IF NOT EXISTS route_row (
  key TEXT NOT NULL PRIMARY KEY, -- organisation/application/id
  tenant TEXT NOT NULL,
  raw TEXT NOT NULL, -- revision, hash, enabled, origin, created, modified: as in Redis
  hash TEXT NOT NULL
) STRICT, WITHOUT ROWID

CREATE INDEX IF NOT EXISTS route_row_tenant ON route_row (tenant)

CREATE INDEX IF NOT EXISTS route_row_hash ON route_row (hash)

CREATE TABLE IF NOT EXISTS route_content (
  hash TEXT NOT NULL PRIMARY KEY,
  text TEXT NOT NULL -- canonical JSON, once however many rows have it
) STRICT, WITHOUT ROWID

CREATE TABLE IF NOT EXISTS route_table (
  name TEXT NOT NULL PRIMARY KEY, -- epoch, revision
  value INTEGER NOT NULL
) STRICT, WITHOUT ROWID

CREATE TABLE IF NOT EXISTS route_copy (
  key TEXT NOT NULL PRIMARY KEY, -- of a shared table, as it was last seen
  raw TEXT NOT NULL,
  text TEXT -- NULL = the row cannot be read
) STRICT, WITHOUT ROWID

CREATE TABLE IF NOT EXISTS route_copy_of (
  name TEXT NOT NULL PRIMARY KEY, -- table (its URL and prefix), epoch, server, revision, root
  value TEXT NOT NULL
) STRICT, WITHOUT ROWID
