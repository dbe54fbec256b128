"""Text for terminals. Pure."""


def printable(text: str) -> str:
    """Escape everything in the text that a terminal would act on."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text
    )
