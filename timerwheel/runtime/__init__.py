"""The engine at work, a module for each path: write, fire, recall, read, index, retain, recover."""
