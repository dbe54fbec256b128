"""HTTP without the calls: routes, queries, bodies, responses, problems, OpenAPI."""
