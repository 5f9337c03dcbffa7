"""Programs that nobody here wrote, as clients of the server, and a load test: `make clients`."""
