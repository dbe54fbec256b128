"""SIGKILL under load, a few times; the long loop is in tests/torture."""

from tests.torture.killing import Loop, Plan, seed_given


async def test_after_five_kills_under_load_the_books_are_right(tmp_path):
    await Loop(Plan(seed_given(), kills=5), tmp_path).run()
