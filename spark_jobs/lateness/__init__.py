"""Lateness of deliveries from the tables of audits, as a page for people who do not run the service."""
