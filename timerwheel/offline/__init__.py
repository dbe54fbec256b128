"""Work on a data directory without its service: snapshot, fsck, backup and restore."""
