"""Recurring schedules: messages that are sent again and again, by cron or by interval."""
