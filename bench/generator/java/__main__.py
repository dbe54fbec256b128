"""`python -m bench.generator.java build`: compiles the Java generator; needs Java 17 and Maven."""

import sys

from bench.generator.java.run import build

if __name__ == "__main__":
    if sys.argv[1:] != ["build"]:
        raise SystemExit(__doc__)
    place = build()
    print(f"{len(list(place.glob('*.jar')))} jars in {place}")
