"""The service as a client sees it: the parts of `timerwheel.client`, a resource of the API each."""
