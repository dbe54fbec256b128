"""Reading a data directory from outside: snapshot, fsck, backup and restore."""
