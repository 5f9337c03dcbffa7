"""Other projects' programs as clients of the server, and a load test: `make clients`."""
