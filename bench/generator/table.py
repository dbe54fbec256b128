"""`python -m bench.generator.table URL TOPIC ROWS`: the process of the scenario `rows`; prints JSON."""

import json
import sys

from bench.scenarios.rows import table

if __name__ == "__main__":
    url, topic, rows = sys.argv[1:]
    print(json.dumps(table(url, topic, int(rows))))
