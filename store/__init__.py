"""Bytes on disk: records, segments, the commit log, index pages, the lock."""
