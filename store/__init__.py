"""The storage layer: records, segments, the commit log, index pages, the lock."""
