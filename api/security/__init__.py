"""Who may call the service, and how: tokens, browsers, TLS, slow clients, the audit log."""
