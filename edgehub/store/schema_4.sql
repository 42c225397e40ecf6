-- Fourth schema of queue.db: the newest stored frame of each elected device.

-- Written in the transaction of its rows, so that a frame that a device repeats to a hub that has
-- started again is known. What the columns mean is described in
-- edgehub/devices/affinity/stored_frames.py.
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

CREATE TRIGGER stored_frame_bound AFTER INSERT ON stored_frame BEGIN
  DELETE FROM stored_frame WHERE number <= new.number - 100000;
END;
