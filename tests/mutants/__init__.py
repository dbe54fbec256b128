"""Mutants: faults put into the code by hand, each with the tests that must notice it. `make mutants`."""
