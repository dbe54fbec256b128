"""All mutants: one list for each part of the code, in a module of its own."""

from tests.mutants import of_store

ALL = [*of_store.MUTANTS]
