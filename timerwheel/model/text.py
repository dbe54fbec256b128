"""Text for terminals. Pure."""


def printable(text: str) -> str:
    """The text with whatever a terminal would act on escaped."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text
    )
