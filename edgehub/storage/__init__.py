"""Files and small databases that outlive the process, written so that a power cut spoils none."""
