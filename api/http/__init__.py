"""HTTP apart from what is called: routes, queries, bodies, responses, problems, OpenAPI."""
