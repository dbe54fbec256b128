"""Consumer groups: who holds which delivered message, until when, and what comes back."""
