PRAGMA auto_vacuum = 2;
PRAGMA application_id = 1701344116;
PRAGMA user_version = 0;
BEGIN TRANSACTION;
CREATE TABLE device (
  device_id TEXT PRIMARY KEY,
  address   TEXT NOT NULL,
  profile   TEXT NOT NULL,
  session   TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE route_content (
  hash TEXT NOT NULL PRIMARY KEY,
  text TEXT NOT NULL -- canonical JSON, once however many rows have it
) STRICT, WITHOUT ROWID;
INSERT INTO "route_content" VALUES('060898fc2cdd6c31464b4eb152ed2d42bb420ab588f834ee3acdff886db7874d','{"priority":1,"route":"FROM /messages/* WHERE kind = ''hot'' INTO $upstream"}');
CREATE TABLE route_copy (
  key TEXT NOT NULL PRIMARY KEY, -- of a shared table, as it was last seen
  raw TEXT NOT NULL,
  text TEXT -- NULL = the row cannot be read
) STRICT, WITHOUT ROWID;
CREATE TABLE route_copy_of (
  name TEXT NOT NULL PRIMARY KEY, -- table (its URL and prefix), epoch, server, revision, root
  value TEXT NOT NULL
) STRICT, WITHOUT ROWID
;
CREATE TABLE route_row (
  key TEXT NOT NULL PRIMARY KEY, -- organisation/application/id
  tenant TEXT NOT NULL,
  raw TEXT NOT NULL, -- revision, hash, enabled, origin, created, modified: as in Redis
  hash TEXT NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO "route_row" VALUES('default/default/hot','default/default','1 060898fc2cdd6c31464b4eb152ed2d42bb420ab588f834ee3acdff886db7874d 1 api 1795926824776 1795926824776','060898fc2cdd6c31464b4eb152ed2d42bb420ab588f834ee3acdff886db7874d');
CREATE TABLE route_table (
  name TEXT NOT NULL PRIMARY KEY, -- epoch, revision
  value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO "route_table" VALUES('epoch',1795926824776);
INSERT INTO "route_table" VALUES('revision',1);
CREATE INDEX route_row_tenant ON route_row (tenant);
CREATE INDEX route_row_hash ON route_row (hash);
CREATE INDEX device_address ON device (address) WHERE address != '';
COMMIT;
