"""All mutants: one list for each part of the code, in a module of its own."""

from tests.mutants import of_delivered, of_engine, of_groups, of_jobs, of_store

ALL = [*of_store.MUTANTS, *of_engine.MUTANTS, *of_groups.MUTANTS, *of_jobs.MUTANTS, *of_delivered.MUTANTS]
