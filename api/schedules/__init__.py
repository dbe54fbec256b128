"""The calls on schedules."""
