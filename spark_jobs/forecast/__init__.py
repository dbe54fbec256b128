"""Forecasts when messages fall due."""
