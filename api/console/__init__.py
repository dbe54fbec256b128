"""The console: the page at `/` and the files that it is made of."""
