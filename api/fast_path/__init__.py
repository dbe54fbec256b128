"""Plain sends, receives and acknowledgements at less cost. Only the application switches it on."""
