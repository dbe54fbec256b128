"""The delayed-message engine: admission, wheel, firing, recovery, CLI and client."""
