"""The books of logs, proved from the logs alone."""
